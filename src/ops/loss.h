/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* What the losses have in common: how they are reduced. */
#ifndef TORUS_OPS_LOSS_H_
#define TORUS_OPS_LOSS_H_

#include "ops/op.h"

/* at::Reduction. */
enum { LOSS_NONE = 0, LOSS_MEAN = 1, LOSS_SUM = 2 };

/* Result 0 is |loss|, reduced, in |dtype|. */
void loss_return(torus_call_t *call, hlo_graph_t *g, hlo_t loss, int64_t reduction,
                 torus_dtype_t dtype);
/* dy / count for a mean, else dy. */
hlo_t loss_share(hlo_graph_t *g, hlo_t dy, int64_t reduction, int64_t count);

#endif /* TORUS_OPS_LOSS_H_ */
