/* What the parts of the engine share: tensors, packed weights, steps, and what a kernel is
 * given.
 *
 * A program is a flat array of steps; every address and stride in it is known before it runs.
 * Every thread goes through all steps; a kernel computes the part of its step that falls to its
 * thread, and between steps that depend on each other all threads meet (`barrier`).
 *
 * Kernel files are compiled once for each instruction set; UN_(name) gives a name its
 * suffix. */
#ifndef UN_H
#define UN_H

#include <stddef.h>
#include <stdint.h>

#ifndef UN_API
#define UN_API __attribute__((visibility("default")))
#endif

#define UN_INLINE static inline __attribute__((always_inline))

#define UN_JOIN2(a, b) a##_##b
#define UN_JOIN(a, b) UN_JOIN2(a, b)
#define UN_(name) UN_JOIN(un_##name, UN_VARIANT)

enum { UN_NODES = 16, UN_INPUTS = 11, UN_LANES = 16, UN_TILE = 16, UN_MANY = 120 };

/* Types as GGUF numbers them. */
enum {
    UN_F32 = 0, UN_F16 = 1, UN_Q4_0 = 2, UN_Q4_1 = 3, UN_Q5_0 = 6, UN_Q5_1 = 7, UN_Q8_0 = 8,
    UN_Q2_K = 10, UN_Q3_K = 11, UN_Q4_K = 12, UN_Q5_K = 13, UN_Q6_K = 14, UN_IQ4_NL = 20,
    UN_IQ4_XS = 23, UN_I32 = 26, UN_BF16 = 30, UN_MXFP4 = 39
};

/* How activations are given to the product with a weight. */
enum { UN_ACT_F32, UN_ACT_I8, UN_ACT_I16 };

/* Quantised activations in blocks of 32: value = d * q. Of N rows, row t begins at q + t * n
 * values and at d, s, 2 sum + t * blocks. `s` is d times the sum of the q of a block, `sum` the
 * sums of its two halves (I8 only). Rows are padded with zeros to whole blocks. */
typedef struct un_act {
    const void *q;      /* int8_t or int16_t */
    const float *d, *s;
    const int16_t *sum;
    int64_t n;          /* values of a row, a multiple of 32 */
    int64_t blocks;     /* n / 32 */
} un_act;

struct un_format;

/* How a weight is cut over nodes. */
enum { UN_BY_ROWS, UN_COPIES, UN_BY_MATRICES };

/* A weight as kernels like it: groups of 16 rows (output features), interleaved; the last group
 * of a matrix is filled up with rows of zeros. Node k holds at data[k], one matrix after the
 * other, by `split`: the groups first[k] <= g < first[k + 1] of each; or all groups of all
 * (first is not used); or all of the matrices first[k] <= m < first[k + 1]. See placed.h. */
typedef struct un_weight {
    const struct un_format *format;
    int64_t rows, cols;       /* of one matrix: (out, in) */
    int64_t count;            /* matrices: experts, else 1 */
    int64_t groups;           /* of one matrix: (rows + 15) / 16 */
    int64_t group_bytes;
    int64_t nodes, split;
    int64_t *chosen;          /* how often each matrix was; NULL: nobody counts */
    int64_t first[UN_NODES + 1];
    char *data[UN_NODES];
} un_weight;

/* One value of the program. Sizes and strides (bytes) in NumPy order, four axes, ones in front.
 * Blocks of quantised types count as their bytes: s[3] is that of a block. */
typedef struct un_tensor {
    char *data;
    int64_t n[4], s[4];
    int32_t type, axes;
    const un_weight *weight;  /* packed; data is then NULL */
} un_tensor;

/* The operations, in the order of un_kernels.ops. Appended to, never renumbered within a build:
 * Python reads the names from un_op_names. */
#define UN_OPS(X) \
    X(add) X(sub) X(mul) X(div) \
    X(sqr) X(sqrt) X(exp) X(neg) X(tanh) X(relu) X(sigmoid) X(softplus) X(silu) X(gelu) \
    X(gelu_erf) X(gelu_quick) \
    X(reglu) X(swiglu) X(geglu) X(geglu_erf) X(geglu_quick) \
    X(scale) X(clamp) X(cast) X(cont) X(concat) \
    X(rms_norm) X(norm) X(rope_cos_sin) X(rope) \
    X(get_rows) X(set_rows) X(prepare) X(linear) X(mul_mat) X(mul_mat_dense) X(mul_mat_id) \
    X(top_k) X(sum_rows) X(soft_max) X(flash_attn_ext) X(kv_store) X(kv_attention) X(kv_merge) \
    X(ssm_conv) X(ssm_scan)

enum {
#define UN_OP(name) UN_OP_##name,
    UN_OPS(UN_OP)
#undef UN_OP
    UN_OP_COUNT
};

typedef struct un_step {
    int32_t op;
    int32_t barrier;          /* all threads meet before this step */
    int32_t inputs;
    int32_t out;              /* numbers of tensors in the program; -1: none */
    int32_t in[UN_INPUTS];
    int32_t spare;
    int64_t i[8];             /* attributes, as the kernel of the operation documents them */
    float f[8];
} un_step;

/* What a kernel is given: its step, and which part of the work is its own. */
typedef struct un_task {
    const un_step *step;
    const un_tensor *tensors;
    int thread, threads;      /* of all that take part */
    int node, nodes;          /* the thread's node; nodes that take part */
    int rank, size;           /* of the thread within its node; threads of that node */
    char *const *wdata;       /* of each node: activations prepared for its threads */
    struct un_scratch *scratch; /* the thread's own, see un_scratch_get */
    const int *cores;         /* how many threads each node has */
} un_task;

typedef void un_kernel(const un_task *task);

/* Memory of the thread's own that lives until the step ends; 64-byte aligned. NULL: there is
 * none, the kernel returns at once, and the run ends with UN_NO_MEMORY. */
void *un_scratch_get(const un_task *task, size_t bytes);

static inline const un_tensor *un_out(const un_task *t) { return &t->tensors[t->step->out]; }
static inline const un_tensor *un_in(const un_task *t, int i)
{
    return i < t->step->inputs ? &t->tensors[t->step->in[i]] : NULL;
}

/* All axes but the last as one. */
static inline int64_t un_rows(const un_tensor *t) { return t->n[0] * t->n[1] * t->n[2]; }

/* n filled up to a multiple of `unit`. */
static inline int64_t un_whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* The part of n pieces that falls to `part` of `parts`: [*from, *to). */
static inline void un_share(int64_t n, int64_t part, int64_t parts, int64_t *from, int64_t *to)
{
    *from = n * part / parts;
    *to = n * (part + 1) / parts;
}

/* What a format's kernel is given: one or two groups of 16 rows, `group_bytes` apart, against
 * up to UN_MANY tokens, over the blocks of 32 values from <= b < to. Sums go to
 * acc[t * 16 + lane], the second group's to acc[(UN_MANY + t) * 16 + lane]; they begin at zero,
 * or with what is there when `more`. Token t is row t of x. Where tokens are no multiple of 8,
 * sums behind the last may be written to. */
typedef struct un_dot {
    const uint8_t *group;
    int64_t group_bytes;
    int groups;
    un_act x;                 /* x.q etc. point to the first token of the tile */
    int64_t from, to;
    int tokens;
    int more;
    float *acc;
} un_dot;

/* A type of weights: how its rows are packed, read back, and multiplied. */
typedef struct un_format {
    int32_t type;             /* of GGUF */
    int32_t act;              /* what `dot` wants */
    int32_t block, bytes;     /* values and bytes of a block of one row, packed */
    /* packs `rows` <= 16 rows that lie `stride` bytes apart; the others are zeros */
    void (*pack)(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group);
    /* the values of one row of a group: out[cols rounded up to whole blocks] */
    void (*row)(const uint8_t *group, int lane, int64_t cols, float *out);
    /* 32 values of all 16 rows as floats: out[k * 16 + lane], for block b of 32 */
    void (*floats)(const uint8_t *group, int64_t cols, int64_t b, float *out);
    void (*dot)(const un_dot *dot);
    /* whether these rows can be packed at all; NULL: any can */
    int (*fits)(const char *rows, int64_t stride, int n, int64_t cols);
} un_format;

/* Everything that is compiled once for each instruction set. */
typedef struct un_kernels {
    const char *name;
    un_kernel *ops[UN_OP_COUNT];
    const un_format *const *formats; /* ends with NULL */
} un_kernels;

extern const un_kernels *const un_variants[]; /* the best first, ends with NULL */

#endif
