/* Attention: what phase 1 found out, and the arithmetic on the worker. */
#ifndef OP_ATTENTION_H
#define OP_ATTENTION_H

#include "op.h"

/* Slots of FusedInferAttentionScoreV2, which are its tensors in the signature's order. */
enum { QUERY, KEY, VALUE, SHIFT, MASK, QUANT, TABLE = 12, PADDING, OUT = 21, LSE };

/* In call->integer; number[0] is the scale. */
enum { HEADS, KV_HEADS, LAYOUT, KV_LAYOUT, PRECISE, BLOCK, Q_LENGTHS, KV_LENGTHS, WITH_LSE };

/* In call->array: lengths of queries from 0 on, of keys from LENGTHS on. */
enum { LENGTHS = NNOP_ARRAY / 2 };

typedef enum { BSH, BSND, BNSD } op_layout;

/* A tensor of any layout as (batch, sequence, head, value); strides in elements. */
typedef struct {
    int64_t batch, tokens, heads, width;
    int64_t by_batch, by_token, by_head, by_value;
} op_heads;

op_heads op_heads_of(const nnop_view *view, int64_t layout, int64_t heads);
void op_attend(const nnop_call *call);

#endif
