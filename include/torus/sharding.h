/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* How an array lies on several devices of a client. Each dimension is cut into equal parts (the
 * last may be smaller); the pieces are dealt out to the devices, each piece to one or, where there
 * are more devices than pieces, to several. */
#ifndef TORUS_SHARDING_H_
#define TORUS_SHARDING_H_

#include <stdbool.h>
#include <stdint.h>

#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_sharding torus_sharding_t; /* immutable; reference counted */

typedef struct torus_sharding_layout {
  int device_count;
  const int *devices;   /* of the client; the position in this list is a partition's number */
  int rank;
  const int64_t *parts; /* into how many each dimension is cut; their product divides the count */
  const int *placement; /* |device_count| partitions: those of the first piece, the second, ..., in
                           row-major order of the pieces */
} torus_sharding_layout_t;

/* INVALID_ARGUMENT unless the layout is as said above. A NULL |placement| deals the pieces out in
 * order. |out_sharding| must be released by the caller. */
TORUS_NODISCARD torus_status_t torus_sharding_create(const torus_sharding_layout_t *layout,
                                                     torus_sharding_t **out_sharding);
/* All of an array of |rank| dimensions on every device of |mesh|. |out_sharding| must be released by
 * the caller. */
TORUS_NODISCARD torus_status_t torus_sharding_replicated(const torus_sharding_t *mesh, int rank,
                                                         torus_sharding_t **out_sharding);
torus_sharding_t *torus_sharding_retain(torus_sharding_t *sharding); /* accepts NULL */
void torus_sharding_release(torus_sharding_t *sharding);             /* accepts NULL */
/* The lists in it live as long as the sharding. */
torus_sharding_layout_t torus_sharding_layout(const torus_sharding_t *sharding);
/* Two NULLs are equal. */
bool torus_sharding_equal(const torus_sharding_t *a, const torus_sharding_t *b);
bool torus_sharding_is_replicated(const torus_sharding_t *sharding);
/* Whether both are over the same devices in the same order. */
bool torus_sharding_shares_mesh(const torus_sharding_t *a, const torus_sharding_t *b);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_SHARDING_H_ */
