/* Rows of any dtype as float or double, and rounded back: the only place that knows how the
   values of a dtype lie in memory. */
#include <stdlib.h>

#include "half.h"
#include "op.h"

/* A nibble, the low one first, as a signed number. */
static inline int nibble(const uint8_t *bytes, int64_t at)
{
    int value = bytes[at / 2] >> (at % 2 * 4) & 15;
    return value >= 8 ? value - 16 : value;
}

static inline void set_nibble(uint8_t *bytes, int64_t at, int64_t value)
{
    int shift = (int)(at % 2 * 4);
    bytes[at / 2] = (uint8_t)((bytes[at / 2] & ~(15 << shift)) | (int)(value & 15) << shift);
}

/* Towards zero, and the nearest where it does not fit. */
static inline int64_t whole(double value, double low, double high)
{
    if (isnan(value))
        return 0;
    return value <= low ? (int64_t)low : value >= high ? (int64_t)high : (int64_t)value;
}

/* What weights are made of, in the way that is asked for most. */
OP_FAST static void halves(const uint16_t *from, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = half_to_float(from[i]);
}

#define READ(type, expression)                       \
    {                                                \
        const type *at = (const type *)base + first; \
        if (step == 1)                               \
            for (int64_t i = 0; i < n; i++) {        \
                type v = at[i];                      \
                to[i] = expression;                  \
            }                                        \
        else                                         \
            for (int64_t i = 0; i < n; i++) {        \
                type v = at[i * step];               \
                to[i] = expression;                  \
            }                                        \
        break;                                       \
    }

#define WRITE(type, expression)                \
    {                                          \
        type *at = (type *)base + first;       \
        for (int64_t i = 0; i < n; i++)        \
            at[i * step] = (type)(expression); \
        break;                                 \
    }

#define ROWS(scope, read, write, T)                                                   \
    scope void read(aclDataType dtype, const void *base, int64_t first, int64_t step, \
                    int64_t n, T *to)                                                 \
    {                                                                                 \
        switch (dtype) {                                                              \
        case ACL_FLOAT16: READ(uint16_t, half_to_float(v))                            \
        case ACL_BF16: READ(uint16_t, bf16_to_float(v))                               \
        case ACL_FLOAT: READ(float, v)                                                \
        case ACL_DOUBLE: READ(double, (T)v)                                           \
        case ACL_INT8: READ(int8_t, v)                                                \
        case ACL_UINT8: READ(uint8_t, v)                                              \
        case ACL_BOOL: READ(uint8_t, v != 0)                                          \
        case ACL_INT16: READ(int16_t, v)                                              \
        case ACL_UINT16: READ(uint16_t, v)                                            \
        case ACL_INT32: READ(int32_t, (T)v)                                           \
        case ACL_UINT32: READ(uint32_t, (T)v)                                         \
        case ACL_INT64: READ(int64_t, (T)v)                                           \
        case ACL_UINT64: READ(uint64_t, (T)v)                                         \
        default:                                                                      \
            for (int64_t i = 0; i < n; i++)                                           \
                to[i] = (T)nibble(base, first + i * step);                            \
        }                                                                             \
    }                                                                                 \
    void write(aclDataType dtype, void *base, int64_t first, int64_t step, int64_t n, \
               const T *from)                                                         \
    {                                                                                 \
        switch (dtype) {                                                              \
        case ACL_FLOAT16: WRITE(uint16_t, float_to_half((float)from[i]))              \
        case ACL_BF16: WRITE(uint16_t, float_to_bf16((float)from[i]))                 \
        case ACL_FLOAT: WRITE(float, from[i])                                         \
        case ACL_DOUBLE: WRITE(double, from[i])                                       \
        case ACL_INT8: WRITE(int8_t, whole(from[i], INT8_MIN, INT8_MAX))              \
        case ACL_UINT8: WRITE(uint8_t, whole(from[i], 0, UINT8_MAX))                  \
        case ACL_BOOL: WRITE(uint8_t, from[i] != 0)                                   \
        case ACL_INT16: WRITE(int16_t, whole(from[i], INT16_MIN, INT16_MAX))          \
        case ACL_UINT16: WRITE(uint16_t, whole(from[i], 0, UINT16_MAX))               \
        case ACL_INT32: WRITE(int32_t, whole(from[i], INT32_MIN, INT32_MAX))          \
        case ACL_UINT32: WRITE(uint32_t, whole(from[i], 0, UINT32_MAX))               \
        case ACL_INT64: WRITE(int64_t, whole(from[i], -0x1p63, 0x1.fffffffffffffp62)) \
        case ACL_UINT64: WRITE(uint64_t, whole(from[i], 0, 0x1.fffffffffffffp62))     \
        default:                                                                      \
            for (int64_t i = 0; i < n; i++)                                           \
                set_nibble(base, first + i * step, whole(from[i], -8, 7));            \
        }                                                                             \
    }

ROWS(, op_read, op_write, double)
ROWS(static, read_float, op_write_f32, float)

void op_read_f32(aclDataType dtype, const void *base, int64_t first, int64_t step, int64_t n,
                 float *to)
{
    if (dtype == ACL_FLOAT16 && step == 1)
        halves((const uint16_t *)base + first, n, to);
    else
        read_float(dtype, base, first, step, n, to);
}

op_rows op_rows_of(const nnop_view *shape, int operands, const nnop_view *const *operand)
{
    int axes = shape->axes > 0 ? shape->axes - 1 : 0;
    op_rows rows = {.axes = axes, .operands = operands, .n = 1};
    if (shape->axes > 0)
        rows.n = shape->shape[rows.axes];
    rows.done = nnop_elements(shape) == 0;
    for (int i = 0; i < rows.axes; i++)
        rows.shape[i] = shape->shape[i];
    for (int o = 0; o < operands; o++)
        for (int i = 1; i <= operand[o]->axes; i++) {
            const nnop_view *view = operand[o];
            int64_t stride = op_dim(view, -i) == 1 ? 0 : view->strides[view->axes - i];
            if (i == 1)
                rows.step[o] = stride;
            else
                rows.strides[o][rows.axes + 1 - i] = stride;
        }
    return rows;
}

void op_rows_next(op_rows *rows)
{
    int i = rows->axes - 1;
    for (; i >= 0; i--) {
        for (int o = 0; o < rows->operands; o++)
            rows->first[o] += rows->strides[o][i];
        if (++rows->index[i] < rows->shape[i])
            return;
        for (int o = 0; o < rows->operands; o++)
            rows->first[o] -= rows->strides[o][i] * rows->shape[i];
        rows->index[i] = 0;
    }
    rows->done = true;
}

void *op_at(const nnop_call *call, int slot)
{
    static _Alignas(16) char empty[16];
    const nnop_view *view = &call->slot[slot].view;
    size_t before = nnop_size(view->dtype, view->offset);
    int64_t extent = nnop_extent(view);
    if (extent == 0)
        return empty;
    char *at = sim_at((const char *)view->data + before, nnop_size(view->dtype, extent));
    if (at == NULL)
        sim_task_fault(507015, "aclnn%s: its tensor %d is not in device memory", call->name,
                       slot);
    return at;
}

void *op_buffer(size_t count, size_t size)
{
    void *buffer = malloc(count * size + 64);
    if (buffer == NULL)
        abort(); /* the simulating machine is full: there is no device's code for that */
    return buffer;
}

#define LOAD_STORE(load, store, read, write, T)                                \
    T *load(const nnop_call *call, int slot)                                   \
    {                                                                          \
        const nnop_view *view = &call->slot[slot].view;                        \
        const void *base = op_at(call, slot);                                  \
        if (base == NULL)                                                      \
            return NULL;                                                       \
        T *all = op_buffer((size_t)nnop_elements(view), sizeof(T)), *at = all; \
        op_rows r = op_rows_of(view, 1, &view);                                \
        for (; !r.done; op_rows_next(&r), at += r.n)                           \
            read(view->dtype, base, r.first[0], r.step[0], r.n, at);           \
        return all;                                                            \
    }                                                                          \
    void store(const nnop_call *call, int slot, const T *from)                 \
    {                                                                          \
        const nnop_view *view = &call->slot[slot].view;                        \
        void *base = op_at(call, slot);                                        \
        if (base == NULL)                                                      \
            return;                                                            \
        op_rows r = op_rows_of(view, 1, &view);                                \
        for (; !r.done; op_rows_next(&r), from += r.n)                         \
            write(view->dtype, base, r.first[0], r.step[0], r.n, from);        \
    }

LOAD_STORE(op_load_f32, op_store_f32, op_read_f32, op_write_f32, float)
LOAD_STORE(op_load, op_store, op_read, op_write, double)
