/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* An operator call as the binding hands it over: plain data, no PyTorch types. */
#ifndef TORUS_CALL_H_
#define TORUS_CALL_H_

#include <stdbool.h>
#include <stdint.h>

#include "torus/dtype.h"
#include "torus/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct torus_storage torus_storage_t;
typedef struct torus_call torus_call_t;

/* Numbers of Python: what a Scalar holds. */
typedef struct torus_number {
  enum { TORUS_NUMBER_BOOL, TORUS_NUMBER_INT, TORUS_NUMBER_DOUBLE, TORUS_NUMBER_COMPLEX } kind;
  int64_t i;           /* BOOL, INT */
  double re, im;       /* DOUBLE (re), COMPLEX */
} torus_number_t;

/* A strided view of a storage. Sizes and strides are borrowed for the call. */
typedef struct torus_view {
  torus_storage_t *storage; /* NULL: a 0-dim CPU tensor whose value is |number| */
  torus_dtype_t dtype;
  int rank;
  const int64_t *sizes;
  const int64_t *strides;   /* in elements */
  int64_t offset;           /* in elements */
  bool is_number;           /* a Python number wrapped as a tensor: weakest in promotion */
  bool is_conj, is_neg;     /* lazy bits of the tensor */
  torus_number_t number;
} torus_view_t;

typedef enum torus_arg_tag {
  TORUS_ARG_NONE,
  TORUS_ARG_TENSOR,
  TORUS_ARG_TENSORS,   /* elements with storage NULL and rank -1 are None */
  TORUS_ARG_NUMBER,    /* int, float, bool, Scalar */
  TORUS_ARG_INTS,      /* int[] and bool[] */
  TORUS_ARG_DOUBLES,
  TORUS_ARG_NUMBERS,   /* Scalar[] */
  TORUS_ARG_STRING,
  TORUS_ARG_DTYPE,
} torus_arg_tag_t;

typedef struct torus_arg {
  torus_arg_tag_t tag;
  int count;                 /* of lists */
  union {
    torus_view_t *views;     /* TENSOR (one) and TENSORS */
    torus_number_t number;
    const int64_t *ints;
    const double *doubles;
    const torus_number_t *numbers;
    const char *string;
    torus_dtype_t dtype;
  } as;
} torus_arg_t;

#ifdef __cplusplus
}
#endif
#endif  /* TORUS_CALL_H_ */
