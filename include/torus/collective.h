/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Collectives of a group as programs. Each member runs the same program on its own device, with a row
 * of elements of its own; the group is all devices that the program is compiled for. */
#ifndef TORUS_COLLECTIVE_H_
#define TORUS_COLLECTIVE_H_

#include <stdint.h>

#include "torus/pjrt.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum torus_collective_kind {
  TORUS_ALL_REDUCE,     /* [n] -> [n] */
  TORUS_ALL_GATHER,     /* [n] -> [size * n], in order of the members */
  TORUS_REDUCE_SCATTER, /* [size * n] -> [n]: member k has the k-th part of the reduction */
  TORUS_ALL_TO_ALL,     /* [size * n] -> [size * n]: part k goes to member k */
  TORUS_BROADCAST,      /* [n] -> [n]: that of |root| */
  TORUS_PERMUTE,        /* [n] -> [n]: from |sources[i]| to |targets[i]|; zeros elsewhere */
} torus_collective_kind_t;

typedef enum torus_reduction {
  TORUS_REDUCE_SUM,
  TORUS_REDUCE_PRODUCT,
  TORUS_REDUCE_MIN,
  TORUS_REDUCE_MAX,
  TORUS_REDUCE_AVERAGE, /* floating point alone */
} torus_reduction_t;

typedef struct torus_collective {
  torus_collective_kind_t kind;
  torus_reduction_t reduction; /* of those that reduce */
  torus_dtype_t dtype;
  int64_t count;               /* n above */
  int size;                    /* members */
  int root;
  const int *sources, *targets;
  int pair_count;
} torus_collective_t;

/* Elements of a member's argument and result. */
int64_t torus_collective_argument_count(const torus_collective_t *collective);
int64_t torus_collective_result_count(const torus_collective_t *collective);

/* The program as StableHLO; |out_text| is to be freed with torus_free. INVALID_ARGUMENT for what the
 * type cannot do, and for members that the group does not have. */
TORUS_NODISCARD torus_status_t torus_collective_text(const torus_collective_t *collective,
                                                     char **out_text);

/* The program for |devices| of one client, one for each member in their order. Argument and result are
 * buffers on several devices: the members' rows one after the other, each on its device.
 * |out_executable| must be released by the caller. */
TORUS_NODISCARD torus_status_t torus_collective_compile(torus_client_t *client, const int *devices,
                                                        const torus_collective_t *collective,
                                                        torus_executable_t **out_executable);
/* The sharding of those buffers; to be released by the caller. */
TORUS_NODISCARD torus_status_t torus_collective_sharding(const int *devices, int size,
                                                         torus_sharding_t **out_sharding);

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_COLLECTIVE_H_ */
