/* FusedInferAttentionScoreV2: phase 1. */
#include <string.h>

#include "op_attention.h"

static op_layout layout_of(op *o, const char *name)
{
    static const char *const names[] = {"BSH", "BSND", "BNSD"};
    if (name == NULL) {
        op_refuse(o, ACLNN_PARAM_NULLPTR, "inputLayout is NULL");
        return BSH;
    }
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    op_need(o, false, "inputLayout %s: BSH, BSND or BNSD", name);
    return BSH;
}

/* Only lists of one tensor: all sequences in it. */
static const nnop_view *member(op *o, const aclTensorList *list, const char *role)
{
    int count = op_list(o, list, role);
    op_need(o, count == 1, "%s has %d tensors, the simulator takes one", role, count);
    return op_slot_view(o, o->call != NULL ? o->call->slots - 1 : 0);
}

static int lengths(op *o, const aclIntArray *array, int place, int64_t batch, int64_t most,
                   const char *role)
{
    if (array == NULL)
        return 0;
    int count = op_ints(o, array, place, role);
    op_need(o, count == 0 || count == 1 || count == batch,
            "%s has %d values for %lld sequences", role, count, (long long)batch);
    for (int i = 0; i < count && o->code == 0; i++)
        op_need(o, o->call->array[place + i] >= 0 && o->call->array[place + i] <= most,
                "%s: %lld of %lld", role, (long long)o->call->array[place + i],
                (long long)most);
    return count;
}

static void check_heads(op *o, const op_heads *q, const op_heads *k, const op_heads *v,
                        int64_t heads, int64_t kv_heads)
{
    op_need(o, heads > 0 && heads <= 256 && q->heads == heads, "numHeads %lld, query has %lld",
            (long long)heads, (long long)q->heads);
    op_need(o, kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= 64,
            "%lld heads for %lld of keys", (long long)heads, (long long)kv_heads);
    op_need(o, k->heads == kv_heads && v->heads == kv_heads, "key has %lld heads, value %lld",
            (long long)k->heads, (long long)v->heads);
    op_need(o, q->width == k->width && q->width == v->width, "D of query, key, value differ");
    op_need(o, q->width % 16 == 0 && q->width <= 512,
            "D is %lld: a multiple of 16, 512 at most", (long long)q->width);
}

/* (B, heads, Q, KV) with leading axes absent or 1; the last two may be larger than need be. */
static void check_rows(op *o, const nnop_view *v, const op_heads *q, int64_t keys,
                       const char *role)
{
    op_need(o, v->axes >= 2 && v->axes <= 4, "%s has %d dims", role, v->axes);
    op_need(o, op_dim(v, -1) >= keys, "%s has %lld of %lld keys", role,
            (long long)op_dim(v, -1), (long long)keys);
    op_need(o, op_dim(v, -2) >= q->tokens || op_dim(v, -2) == 1, "%s has %lld of %lld queries",
            role, (long long)op_dim(v, -2), (long long)q->tokens);
    if (v->axes >= 3)
        op_need(o, v->shape[0] == 1 || v->shape[0] == q->batch, "%s is for %lld sequences",
                role, (long long)v->shape[0]);
    if (v->axes == 4)
        op_need(o, v->shape[1] == 1 || v->shape[1] == q->heads, "%s is for %lld heads", role,
                (long long)v->shape[1]);
}

/* It is one for each head: (B, N, Q, KV) or (1, N, Q, KV). */
static void check_shift(op *o, const nnop_view *v, const op_heads *q)
{
    op_need(o, v->axes == 4 && v->shape[1] == q->heads && op_dim(v, -2) >= q->tokens,
            "pseShift is not for %lld heads and %lld queries", (long long)q->heads,
            (long long)q->tokens);
}

static void check_mask(op *o, const nnop_view *mask)
{
    op_need(o, mask->dtype == ACL_BOOL || mask->dtype == ACL_INT8 || mask->dtype == ACL_UINT8,
            "a mask of %s", op_dtype(mask->dtype));
}

/* What an attention operator is given. */
typedef struct {
    const aclTensor *query, *shift, *mask, *quantised[7], *table, *padding[2], *antiquant[4];
    const aclTensor *prefix[2], *out, *lse;
    const aclTensorList *key, *value;
    const aclIntArray *q_lengths, *kv_lengths;
    const char *layout;
    int64_t heads, kv_heads, precise, block;
    double scale;
    bool with_lse;
} given;

/* What phase 1 makes of it: views (NULL: absent), and their heads. */
typedef struct {
    const nnop_view *q, *shift, *mask, *table, *out, *lse;
    nnop_view key, value;
    op_layout layout, kv_layout;
    op_heads hq, hk, hv;
    int64_t heads, kv_heads, longest;
    int q_lengths, kv_lengths;
} found;

static int64_t blocks(int64_t keys, int64_t block)
{
    return (keys + block - 1) / block;
}

/* Blocks of keys: (blocks, blockSize, heads * D) or, where query is BNSD, also (blocks, heads,
   blockSize, D). A single query has a kernel of its own, with another rule for blockSize. */
static void check_table(op *o, const given *g, const found *f)
{
    const op_heads *k = &f->hk;
    int64_t block = g->block, unit = f->hq.tokens == 1 ? 16 : 128, used = 0;
    op_need(o, f->kv_lengths > 0, "a block table without actualSeqLengthsKv");
    op_need(o, f->table->dtype == ACL_INT32 && f->table->axes == 2 &&
                   op_dim(f->table, 0) == f->hq.batch,
            "the block table is no int32 (B, blocks)");
    op_need(o, f->kv_layout == BSH || f->layout == BNSD,
            "blocks of (heads, blockSize, D) for a query that is not BNSD");
    op_need(o, f->kv_layout != BSH || k->heads * k->width <= 65535, "%lld values in a row",
            (long long)(k->heads * k->width));
    op_need(o, block > 0 && block <= 512 && block % unit == 0 && block == k->tokens,
            "blockSize %lld, a multiple of %lld to 512; key has blocks of %lld",
            (long long)block, (long long)unit, (long long)k->tokens);
    if (o->code != 0)
        return;
    op_need(o, op_dim(f->table, 1) >= blocks(f->longest, block),
            "the table ends before %lld keys", (long long)f->longest);
    for (int64_t i = 0; i < f->hq.batch; i++)
        used += blocks(o->call->array[LENGTHS + (f->kv_lengths > 1 ? i : 0)], block);
    op_need(o, k->batch >= used, "%lld blocks for lengths that take %lld",
            (long long)k->batch, (long long)used);
}

/* The tensors that the simulator does without, as NULL. */
static void absent(op *o, const aclTensor *const *tensors, int count, const char *role)
{
    for (int i = 0; i < count; i++)
        op_need(o, op_maybe(o, tensors[i], false, role) == NULL, "the simulator has no %s",
                role);
}

/* All tensors, in the signature's order. */
static void take(op *o, const given *g, found *f)
{
    f->layout = layout_of(o, g->layout);
    f->q = op_in(o, g->query, "query");
    f->key = *member(o, g->key, "key");
    f->value = *member(o, g->value, "value");
    f->shift = op_maybe(o, g->shift, false, "pseShift");
    f->mask = op_maybe(o, g->mask, false, "attenMask");
    absent(o, g->quantised, 7, "quantisation");
    f->table = op_maybe(o, g->table, false, "blockTable");
    absent(o, g->padding, 2, "padding");
    absent(o, g->antiquant, 4, "quantisation");
    absent(o, g->prefix, 2, "shared prefix");
    f->out = op_out(o, g->out, "attentionOut");
    f->lse = g->with_lse ? op_side(o, g->lse, true, "softmaxLse")
                         : op_maybe(o, g->lse, true, "softmaxLse");
}

static void check_tensors(op *o, const found *f)
{
    int axes = f->layout == BSH ? 3 : 4, kv = f->key.axes;
    op_need(o, f->q->axes == axes, "query has %d dims", f->q->axes);
    op_need(o, f->table != NULL ? kv == 3 || kv == 4 : kv == axes, "key has %d dims", kv);
    op_need(o, op_same(&f->key, &f->value), "key and value have different shapes");
    op_need(o, f->q->dtype == ACL_FLOAT16 || f->q->dtype == ACL_BF16, "a query of %s",
            op_dtype(f->q->dtype));
    op_same_dtype(o, f->q, &f->key);
    op_same_dtype(o, f->q, &f->value);
    op_same_dtype(o, f->q, f->out);
    op_same_shape(o, f->q, f->out);
    if (f->shift != NULL)
        op_same_dtype(o, f->q, f->shift);
    if (f->mask != NULL)
        check_mask(o, f->mask);
}

/* After check_tensors: axes are what the layout says. */
static void check_shapes(op *o, const given *g, found *f)
{
    f->heads = g->heads;
    f->kv_heads = g->kv_heads == 0 ? g->heads : g->kv_heads;
    f->kv_layout = f->table == NULL ? f->layout : f->key.axes == 3 ? BSH : BNSD;
    f->hq = op_heads_of(f->q, f->layout, f->heads);
    f->hk = op_heads_of(&f->key, f->kv_layout, f->kv_heads);
    f->hv = op_heads_of(&f->value, f->kv_layout, f->kv_heads);
    check_heads(o, &f->hq, &f->hk, &f->hv, f->heads, f->kv_heads);
    int64_t most = f->table != NULL ? f->hk.batch * f->hk.tokens : f->hk.tokens;
    f->q_lengths = lengths(o, g->q_lengths, 0, f->hq.batch, f->hq.tokens, "actualSeqLengths");
    f->kv_lengths = lengths(o, g->kv_lengths, LENGTHS, f->hq.batch, most, "actualSeqLengthsKv");
    f->longest = f->kv_lengths > 0 ? 0 : f->hk.tokens;
    for (int i = 0; i < f->kv_lengths && o->code == 0; i++)
        if (o->call->array[LENGTHS + i] > f->longest)
            f->longest = o->call->array[LENGTHS + i];
    if (f->table != NULL)
        check_table(o, g, f);
    else
        op_need(o, f->hk.batch == f->hq.batch, "key has another batch than query");
    if (o->code != 0)
        return;
    int64_t wide = f->table != NULL ? blocks(f->longest, g->block) * g->block : f->longest;
    if (f->shift != NULL) {
        check_rows(o, f->shift, &f->hq, wide, "pseShift");
        check_shift(o, f->shift, &f->hq);
    }
    if (f->mask != NULL)
        check_rows(o, f->mask, &f->hq, wide, "attenMask");
    op_need(o, g->precise >= 0 && g->precise <= (f->hq.tokens == 1 ? 1 : 3),
            "innerPrecise %lld for %lld queries", (long long)g->precise,
            (long long)f->hq.tokens);
    if (g->with_lse)
        op_need(o, f->lse->dtype == ACL_FLOAT && f->lse->axes == 4 &&
                       op_dim(f->lse, 0) == f->hq.batch && op_dim(f->lse, 1) == f->heads &&
                       op_dim(f->lse, 2) == f->hq.tokens && op_dim(f->lse, 3) == 1,
                "softmaxLse is no float32 (B, N, S, 1)");
}

static void keep(op *o, const given *g, const found *f)
{
    int64_t integer[] = {f->heads, f->kv_heads, f->layout, f->kv_layout, g->precise, g->block,
                         f->q_lengths, f->kv_lengths, g->with_lse};
    double queries = (double)(f->hq.batch * f->hq.tokens * f->heads);
    double keys = (double)(f->hq.batch * f->longest * f->kv_heads);
    memcpy(o->call->integer, integer, sizeof integer);
    o->call->number[0] = g->scale;
    o->call->flops = 4 * queries * (double)(f->longest * f->hq.width);
    o->call->bytes = 2 * (double)nnop_size(f->q->dtype, f->hq.width) * (queries + keys);
    const nnop_view *seen[] = {f->shift, f->mask, f->table};
    for (int i = 0; i < 3; i++)
        if (seen[i] != NULL)
            o->call->bytes += (double)nnop_size(seen[i]->dtype, nnop_elements(seen[i]));
    op_workspace(o, f->hq.batch * f->hq.tokens * f->heads);
}

static aclnnStatus attention(op *o, const given *g, int64_t sparse, int64_t before,
                             int64_t after)
{
    found f;
    take(o, g, &f);
    check_tensors(o, &f);
    if (o->code == 0)
        check_shapes(o, g, &f);
    op_need(o, sparse == 0, "sparseMode %lld: the simulator has 0", (long long)sparse);
    op_need(o, f.mask == NULL || (before >= f.longest && after >= f.longest),
            "the simulator has no bands: preTokens or nextTokens below the keys");
    if (o->code == 0)
        keep(o, g, &f);
    return op_end(o);
}

OP(FusedInferAttentionScoreV2, const aclTensor *query, const aclTensorList *key,
   const aclTensorList *value, const aclTensor *pseShift, const aclTensor *attenMask,
   const aclIntArray *actualSeqLengths, const aclIntArray *actualSeqLengthsKv,
   const aclTensor *deqScale1, const aclTensor *quantScale1, const aclTensor *deqScale2,
   const aclTensor *quantScale2, const aclTensor *quantOffset2, const aclTensor *antiquantScale,
   const aclTensor *antiquantOffset, const aclTensor *blockTable,
   const aclTensor *queryPaddingSize, const aclTensor *kvPaddingSize,
   const aclTensor *keyAntiquantScale, const aclTensor *keyAntiquantOffset,
   const aclTensor *valueAntiquantScale, const aclTensor *valueAntiquantOffset,
   const aclTensor *keySharedPrefix, const aclTensor *valueSharedPrefix,
   const aclIntArray *actualSharedPrefixLen, int64_t numHeads, double scaleValue,
   int64_t preTokens, int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads,
   int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode,
   bool softmaxLseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode,
   const aclTensor *attentionOut, const aclTensor *softmaxLse)
{
    BEGIN(FusedInferAttentionScoreV2, op_attend);
    (void)antiquantMode, (void)keyAntiquantMode, (void)valueAntiquantMode;
    op_need(&o, actualSharedPrefixLen == NULL, "the simulator has no shared prefix");
    given g = {
        .query = query, .key = key, .value = value, .shift = pseShift, .mask = attenMask,
        .quantised = {deqScale1, quantScale1, deqScale2, quantScale2, quantOffset2,
                      antiquantScale, antiquantOffset},
        .table = blockTable, .padding = {queryPaddingSize, kvPaddingSize},
        .antiquant = {keyAntiquantScale, keyAntiquantOffset, valueAntiquantScale,
                      valueAntiquantOffset},
        .prefix = {keySharedPrefix, valueSharedPrefix}, .out = attentionOut, .lse = softmaxLse,
        .q_lengths = actualSeqLengths, .kv_lengths = actualSeqLengthsKv, .layout = inputLayout,
        .heads = numHeads, .kv_heads = numKeyValueHeads, .precise = innerPrecise,
        .block = blockSize, .scale = scaleValue, .with_lse = softmaxLseFlag,
    };
    return attention(&o, &g, sparseMode, preTokens, nextTokens);
}

/* One query for each sequence. */
OP(IncreFlashAttention, const aclTensor *query, const aclTensorList *key,
   const aclTensorList *value, const aclTensor *pseShift, const aclTensor *attenMask,
   const aclIntArray *actualSeqLengths, int64_t numHeads, double scaleValue, char *inputLayout,
   int64_t numKeyValueHeads, const aclTensor *attentionOut)
{
    BEGIN(IncreFlashAttention, op_attend);
    given g = {
        .query = query, .key = key, .value = value, .shift = pseShift, .mask = attenMask,
        .out = attentionOut, .kv_lengths = actualSeqLengths, .layout = inputLayout,
        .heads = numHeads, .kv_heads = numKeyValueHeads, .scale = scaleValue,
    };
    return attention(&o, &g, 0, INT64_MAX, INT64_MAX);
}
