/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Shardings as buffers, programs and the engine's program keys need them. */
#ifndef TORUS_PJRT_SHARDING_H_
#define TORUS_PJRT_SHARDING_H_

#include <stdatomic.h>

#include "base/strbuf.h"
#include "torus/sharding.h"

struct torus_sharding {
  _Atomic int32_t references;
  int device_count;
  int rank;
  int *devices;    /* |device_count|, in this block, as is the next */
  int *placement;  /* |device_count| */
  int64_t parts[]; /* |rank| */
};

/* The mhlo.sharding of a program's argument or result. */
void torus_sharding_append_text(const torus_sharding_t *sharding, torus_strbuf_t *out);

/* How many different pieces there are. */
int torus_pjrt_sharding_pieces(const torus_sharding_t *sharding);

/* Where a piece of an array of |dims| begins, and how large a device's array for it is: the same for
 * every piece, so that the last may reach beyond the array. */
void torus_pjrt_sharding_extent(const torus_sharding_t *sharding, int piece, const int64_t *dims,
                                int64_t *out_starts, int64_t *out_sizes);

/* Reads the shardings of a program's results from an HloModuleProtoWithConfig: |count| of them over
 * the devices of |mesh|, with the ranks |ranks|. UNIMPLEMENTED for kinds that a
 * torus_sharding_t cannot express. On success each of |out_shardings| must be released. */
TORUS_NODISCARD torus_status_t torus_pjrt_sharding_read_results(const char *bytes, size_t size,
                                                                const torus_sharding_t *mesh,
                                                                size_t count, const int *ranks,
                                                                torus_sharding_t **out_shardings);

#endif /* TORUS_PJRT_SHARDING_H_ */
