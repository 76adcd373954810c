/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A finished graph as a block that is appended to other graphs. */
#ifndef TORUS_HLO_BLOCK_H_
#define TORUS_HLO_BLOCK_H_

#include "hlo/graph.h"

/* The nodes of |g| that reach |outputs|, alone in a new graph: a parameter for each input that is
 * used, in argument order (see encode.h), then the others in their order. Soft numbers and marks come
 * along. |out_outputs| receives where the |count| outputs are in the block, which is to be destroyed
 * by the caller. */
TORUS_NODISCARD torus_status_t hlo_block_extract(hlo_graph_t *g, const hlo_t *outputs, size_t count,
                                                 hlo_graph_t **out_block, hlo_t *out_outputs);

/* Appends |block| to |g| with the |argument_count| nodes |arguments| in the place of its parameters;
 * they must have the parameters' types. |outputs|, nodes of the block, |count| of them, become nodes
 * of |g|. False after an error in |g|. Takes a few nanoseconds for each node. */
bool hlo_block_append(hlo_graph_t *g, const hlo_graph_t *block, const hlo_t *arguments,
                      size_t argument_count, hlo_t *outputs, size_t count);

#endif /* TORUS_HLO_BLOCK_H_ */
