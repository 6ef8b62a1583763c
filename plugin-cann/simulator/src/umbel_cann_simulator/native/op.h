/* What operators are written with: phase 1 builds a call step by step and notes the first
   fault, phase 2 is the same for all, and a call's `run` reads and writes through views. */
#ifndef OP_H
#define OP_H

#include <math.h>

#include "nnop.h"

/* Functions that are worth more than one set of instructions. A sanitiser is not ready yet when
   the loader chooses between them. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define OP_FAST __attribute__((target_clones("default", "arch=haswell")))
#else
#define OP_FAST
#endif

/* A call on its way through phase 1. */
typedef struct {
    const char *name;
    int code; /* of the first fault, which ends phase 1; 0: none */
    nnop_call *call;
    int room, arguments;
    const nnop_view *computed[8]; /* whose dtypes must be ones that the chip runs */
    int computes;
    uint64_t *size;
    aclOpExecutor **executor;
} op;

typedef void op_run(const nnop_call *call);
typedef double op_calc(double x, double y, const double *p);

op op_begin(const char *name, op_run *run, uint64_t *size, aclOpExecutor **executor);
aclnnStatus op_end(op *o);

/* Tensors in the order of the signature. A NULL is noted as 161001, and what is returned then
   is an empty view: what follows may look at it. `role` is what messages call it. */
const nnop_view *op_in(op *o, const aclTensor *tensor, const char *role);
const nnop_view *op_out(op *o, const aclTensor *tensor, const char *role);
const nnop_view *op_inout(op *o, const aclTensor *tensor, const char *role);
/* The same for indices, masks, statistics: the chip's dtypes do not matter. */
const nnop_view *op_side(op *o, const aclTensor *tensor, bool out, const char *role);
/* NULL where the tensor is; its slot is then empty. */
const nnop_view *op_maybe(op *o, const aclTensor *tensor, bool out, const char *role);
/* All of a list, as one argument: how many. The views are op_slot_view(o, first + i). */
int op_list(op *o, const aclTensorList *list, const char *role);
const nnop_view *op_slot_view(const op *o, int slot);

double op_scalar(op *o, const aclScalar *scalar, const char *role);
/* Copies an array into call->array[at ...]; its length. */
int op_ints(op *o, const aclIntArray *array, int at, const char *role);

/* Notes 161002 unless `fits`; another code in any case. Only the first one counts. */
void op_need(op *o, bool fits, const char *format, ...) __attribute__((format(printf, 3, 4)));
void op_refuse(op *o, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Whether the chip runs it, with these dtypes; the special rules of chips (op_chip.c). */
void op_chip(op *o);

/* The common questions of phase 1. */
int64_t op_dim(const nnop_view *view, int axis); /* from the end where negative; 0: none such */
bool op_same(const nnop_view *a, const nnop_view *b);
bool op_spreads(const nnop_view *from, const nnop_view *to); /* broadcasts to its shape */
bool op_contiguous(const nnop_view *view);
bool op_floats(const nnop_view *view);  /* f16, bf16 or f32 */
bool op_index(const nnop_view *view);   /* int32 or int64 */
const char *op_dtype(aclDataType dtype);
/* An axis counted from either end as 0 ..., noted as wrong outside. */
int op_axis(op *o, const nnop_view *view, int64_t axis);
void op_same_dtype(op *o, const nnop_view *a, const nnop_view *b);
void op_same_shape(op *o, const nnop_view *a, const nnop_view *b);

/* On the worker. Memory that a view covers, where its first element is; NULL: it is no longer
   device memory, which is noted as the stream's fault. */
void *op_at(const nnop_call *call, int slot);
/* For a while, never NULL; free() ends it. */
void *op_buffer(size_t count, size_t size);

/* Values `first`, `first + step` ... of memory, counted in elements. */
void op_read(aclDataType dtype, const void *base, int64_t first, int64_t step, int64_t n,
             double *to);
void op_write(aclDataType dtype, void *base, int64_t first, int64_t step, int64_t n,
              const double *from);
void op_read_f32(aclDataType dtype, const void *base, int64_t first, int64_t step, int64_t n,
                 float *to);
void op_write_f32(aclDataType dtype, void *base, int64_t first, int64_t step, int64_t n,
                  const float *from);

/* Goes through the rows (last axes) of a shape; up to 4 operands follow it, broadcast. */
typedef struct {
    int axes, operands;
    int64_t n;                     /* elements in a row */
    int64_t shape[NNOP_AXES], index[NNOP_AXES];
    int64_t strides[4][NNOP_AXES], first[4], step[4];
    bool done;
} op_rows;

op_rows op_rows_of(const nnop_view *shape, int operands, const nnop_view *const *operand);
void op_rows_next(op_rows *rows);

/* A whole tensor as packed float32 or double, for the caller to free, and back. NULL: the fault
   is noted. */
float *op_load_f32(const nnop_call *call, int slot);
double *op_load(const nnop_call *call, int slot);
void op_store_f32(const nnop_call *call, int slot, const float *from);
void op_store(const nnop_call *call, int slot, const double *from);

/* Phase 1 of `calc` over one tensor or two. */
typedef enum {
    OP_ONE,  /* out = calc(x) */
    OP_TWO,  /* out = calc(x, y), broadcast */
    OP_TEST, /* the same; out holds truth values, of a dtype that does not matter */
    OP_TEST_ONE,
} op_kind;

aclnnStatus op_elementwise(op *o, op_kind kind, const aclTensor *x, const aclTensor *y,
                           const aclTensor *out, op_calc *calc);
/* The same in place of x. */
aclnnStatus op_elementwise_inplace(op *o, op_kind kind, const aclTensor *x, const aclTensor *y,
                                   op_calc *calc);
void op_run_elementwise(const nnop_call *call);

/* A shape as (outer, n, inner) around one axis. */
typedef struct {
    int64_t outer, n, inner;
} op_split;

op_split op_split_at(const nnop_view *view, int axis);

double op_gelu(double x, bool tanh_form);

/* The head of phase 1, whose last arguments are the same for all, and phase 2. */
#define OP(Name, ...)                                                                        \
    ACL_API aclnnStatus aclnn##Name(void *workspace, uint64_t size, aclOpExecutor *executor, \
                                    aclrtStream stream)                                      \
    {                                                                                        \
        return nnop_launch(#Name, workspace, size, executor, stream);                        \
    }                                                                                        \
    ACL_API aclnnStatus aclnn##Name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize,  \
                                                      aclOpExecutor **executor)

/* The first line of its body. */
#define BEGIN(Name, run) op o = op_begin(#Name, run, workspaceSize, executor)

/* Copies values, of other dtypes too; `from` broadcasts to `to`'s shape. Both pointers are
   where the views' first elements are. */
void op_copy(const nnop_view *to, void *at, const nnop_view *from, const void *source);

/* Part of a view along one axis, as another view; *first grows by where it begins. */
nnop_view op_part(const nnop_view *view, int axis, int64_t from, int64_t n, int64_t *first);
void *op_element(const nnop_view *view, void *base, int64_t first);

#define OP_CALC(Name, expression)                                  \
    static double calc_##Name(double x, double y, const double *p) \
    {                                                              \
        (void)x, (void)y, (void)p;                                 \
        return expression;                                         \
    }

/* Products and the like work in memory of their own: callers have to bring some. */
static inline void op_workspace(op *o, int64_t rows)
{
    if (o->code == 0)
        o->call->workspace_size = 512 * (uint64_t)(1 + rows / 64);
}

#endif
