/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* How an ATen operator becomes StableHLO.
 *
 * An operator is one TORUS_OP block in the file of its family; nothing else has to be edited:
 *
 *     TORUS_OP(relu, "relu", TORUS_OP_POINTWISE) {
 *       hlo_t x = op_tensor(call, 0);
 *       op_return(call, 0, hlo_maximum(g, x, hlo_const(g, hlo_dtype(g, x), 0)));
 *     }
 *
 * The name is the functional ATen overload without "aten::" ("add.Tensor"). Its in-place and out=
 * overloads (add_.Tensor, add.out) are registered with the same lowering: the binding finds them by
 * their schemas, converts the result to the type of the written argument and stores it.
 * Arguments are numbered as in the schema, keyword-only ones included, defaults filled in.
 * Mistakes go through op_error (or any hlo_* call that fails); PyTorch's own error text then comes
 * from the same call on meta tensors, so a lowering only has to notice, not to word, the fault.
 * op_fallback sends a case that is not lowered to the CPU, counted and reported. */
#ifndef TORUS_OPS_OP_H_
#define TORUS_OPS_OP_H_

#include "hlo/graph.h"
#include "torus/call.h"

typedef struct torus_op torus_op_t;
typedef void (*torus_lowering_fn)(torus_call_t *call, hlo_graph_t *g);

enum {
  /* Results take the memory order of the inputs as TensorIterator does (channels last stays). */
  TORUS_OP_POINTWISE = 1,
  /* Results of rank 4 or 5 are channels last when the first tensor argument is. */
  TORUS_OP_KEEP_FORMAT = 2,
  /* Uses op_random; the binding passes the generator argument. */
  TORUS_OP_RANDOM = 4,
  /* Results of rank 4 lie in memory with dimensions 1 and 2 exchanged, as PyTorch's fused attention
   * leaves them: (B, H, L, E) as (B, L, H, E), so that heads are joined without a copy. */
  TORUS_OP_HEADS_INSIDE = 8,
};

struct torus_op {
  const char *name;          /* "add.Tensor" */
  const char *family;        /* source file it stands in, set by the macro */
  unsigned flags;
  torus_lowering_fn lower;
};

#define TORUS_OP(ident, aten_name, op_flags)                                                       \
  static void lower_##ident(torus_call_t *call, hlo_graph_t *g);                                   \
  static const torus_op_t torus_op_##ident = {aten_name, __FILE__, op_flags, lower_##ident};       \
  static const torus_op_t *const torus_op_entry_##ident                                            \
      __attribute__((section("torus_ops"), used)) = &torus_op_##ident;                             \
  static void lower_##ident(torus_call_t *call __attribute__((unused)),                            \
                            hlo_graph_t *g __attribute__((unused)))

/* All operators of the library, in link order. */
size_t torus_op_count(void);
const torus_op_t *torus_op_at(size_t index);
/* NULL when there is none. */
const torus_op_t *torus_op_find(const char *name);

/* ---- reading arguments (i = position in the schema) ---- */

bool op_has(const torus_call_t *call, int i); /* not None, not an undefined tensor */
/* The argument as a node in its own type. A Python number or 0-dim CPU tensor becomes a soft
 * scalar. HLO_NONE for None. */
hlo_t op_tensor(torus_call_t *call, int i);
/* The same converted to |dtype|. */
hlo_t op_tensor_as(torus_call_t *call, int i, torus_dtype_t dtype);
torus_dtype_t op_tensor_dtype(const torus_call_t *call, int i);
int op_tensor_rank(const torus_call_t *call, int i);
int64_t op_tensor_dim(const torus_call_t *call, int i, int dim);
int64_t op_tensor_numel(const torus_call_t *call, int i);
/* Row-major without gaps, as torch.Tensor.is_contiguous. */
bool op_is_contiguous(const torus_call_t *call, int i);
/* Tensor[] and Tensor?[]: length, and elements (HLO_NONE for None). */
int op_list_size(const torus_call_t *call, int i);
bool op_list_has(const torus_call_t *call, int i, int k);
hlo_t op_list_tensor(torus_call_t *call, int i, int k);
torus_dtype_t op_list_dtype(const torus_call_t *call, int i, int k);

int64_t op_int(const torus_call_t *call, int i);     /* int, bool, or Scalar holding one */
double op_double(const torus_call_t *call, int i);   /* any real number */
bool op_bool(const torus_call_t *call, int i);
int64_t op_int_or(const torus_call_t *call, int i, int64_t otherwise);   /* for None */
double op_double_or(const torus_call_t *call, int i, double otherwise);
bool op_bool_or(const torus_call_t *call, int i, bool otherwise);
const char *op_string(const torus_call_t *call, int i); /* NULL for None */
/* dtype argument; |otherwise| for None. */
torus_dtype_t op_dtype_or(const torus_call_t *call, int i, torus_dtype_t otherwise);
/* int[] (None: count 0). Lives as long as the call. */
const int64_t *op_ints(const torus_call_t *call, int i, int *out_count);
/* Element k of an int[] that may be shorter (one value for all). */
int64_t op_ints_at(const torus_call_t *call, int i, int k);
const double *op_doubles(const torus_call_t *call, int i, int *out_count);
/* Scalar[]. */
const torus_number_t *op_numbers(const torus_call_t *call, int i, int *out_count);
/* A Scalar argument as a soft rank-0 node of |dtype| (also complex). A bool or int Scalar keeps
 * full 64-bit precision. */
hlo_t op_scalar(torus_call_t *call, int i, torus_dtype_t dtype);
/* The type a Scalar has in promotion: BOOL, I64, F64 (default dtype category), C128. */
torus_dtype_t op_scalar_dtype(const torus_call_t *call, int i);
bool op_scalar_is(const torus_call_t *call, int i, double value);
/* The same for one number of a Scalar[]. */
hlo_t op_number(torus_call_t *call, const torus_number_t *number, torus_dtype_t dtype);
torus_dtype_t op_number_dtype(const torus_number_t *number);

/* dim wrapped into 0..rank-1 (rank 0 counts as 1); IndexError outside. */
int op_dim(torus_call_t *call, int i, int rank);
int op_wrap_dim(torus_call_t *call, int64_t dim, int rank);
/* Optional int[] of dims, wrapped; None or empty gives all |rank| dims. Duplicates are errors.
 * Returns the count, or -1. */
int op_dims(torus_call_t *call, int i, int rank, int *out_dims);

/* torch.result_type over the given arguments (tensors and Scalars; None ignored), with PyTorch's
 * categories: dimensioned tensors over 0-dim ones over numbers. INVALID on an error (reported). */
torus_dtype_t op_result_type(torus_call_t *call, const int *args, int count);
/* The two operands promoted (to |dtype| unless INVALID) and broadcast together. */
void op_binary_operands(torus_call_t *call, int i, int j, torus_dtype_t dtype, hlo_t *out_x,
                        hlo_t *out_y);
/* Integers and bool become the default float type; floats stay. */
torus_dtype_t op_float_type(const torus_call_t *call, torus_dtype_t dtype);
/* Type to accumulate in: F16/BF16/F8 -> F32, others unchanged. */
torus_dtype_t op_accumulate_type(torus_dtype_t dtype);
torus_dtype_t op_default_dtype(const torus_call_t *call); /* torch.get_default_dtype() */

/* ---- random numbers ---- */

/* Seed and offset (rank-0 U64) for |count| 32-bit numbers; advances the generator. */
void op_random(torus_call_t *call, int64_t count, hlo_t *out_seed, hlo_t *out_offset);
/* Uniform in [0, 1) with the type's full mantissa; |dtype| real float. */
hlo_t op_random_uniform(torus_call_t *call, torus_dtype_t dtype, int rank, const int64_t *dims);
hlo_t op_random_normal(torus_call_t *call, torus_dtype_t dtype, int rank, const int64_t *dims);

/* ---- results ---- */

/* Result k of the schema. For a Tensor[] return, the elements in order. */
void op_return(torus_call_t *call, int k, hlo_t x);
/* Undefined tensor as result k. */
void op_return_none(torus_call_t *call, int k);
/* Argument i (a tensor) receives x, converted to its type: for schemas that mutate without saying
 * so (batch-norm statistics) or next to returned values. Element k of a list argument. */
void op_write(torus_call_t *call, int i, hlo_t x);
void op_write_list(torus_call_t *call, int i, int k, hlo_t x);
/* True when the schema's in-place or out= overload was called. */
bool op_is_inplace(const torus_call_t *call);

/* ---- checks and errors ---- */

/* Every element of the integer node |index| must lie in [low, size): otherwise the program reports
 * IndexError "index {value} is out of bounds for dimension {dim} with size {size}" at the next
 * wait. Returns |index|, with negative values wrapped when low < 0. */
hlo_t op_check_index(torus_call_t *call, hlo_t index, int64_t low, int64_t size, int dim);
/* Reports |message| as |code| at the next wait when the rank-0 BOOL |failed| is true. The message
 * must live for ever (a literal). */
void op_check(torus_call_t *call, hlo_t failed, torus_status_code_t code, const char *message);
/* INVALID_ARGUMENT -> RuntimeError, OUT_OF_RANGE -> IndexError, UNIMPLEMENTED -> CPU fallback. */
void op_error(torus_call_t *call, torus_status_code_t code, const char *format, ...)
    TORUS_PRINTF(3, 4);
void op_fallback(torus_call_t *call, const char *reason);
bool op_failed(const torus_call_t *call);

/* ---- data-dependent sizes ---- */

/* Ends the window, waits, and reads a rank-0 integer or bool node. Nodes made before are no longer
 * valid afterwards, nor is the graph: go on with op_graph(call), read the arguments again. */
int64_t op_read_int(torus_call_t *call, hlo_t x);
/* The graph of the window that is open now. */
hlo_graph_t *op_graph(torus_call_t *call);
/* Result k is the leading |size| entries along dimension 0 of x, without a program per size. */
void op_return_prefix(torus_call_t *call, int k, hlo_t x, int64_t size);

#endif  /* TORUS_OPS_OP_H_ */
