/* What the chip of this process runs: its file's lines `op NAME dtypes | dtype=code ...`, and
   the rules that are more than a list, which its file names as `rule NAME ...`. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"

static const struct {
    aclDataType dtype;
    const char *name;
} dtypes[] = {
    {ACL_FLOAT, "f32"},   {ACL_FLOAT16, "f16"}, {ACL_BF16, "bf16"},  {ACL_DOUBLE, "f64"},
    {ACL_INT4, "i4"},     {ACL_INT8, "i8"},     {ACL_INT16, "i16"},  {ACL_INT32, "i32"},
    {ACL_INT64, "i64"},   {ACL_UINT8, "u8"},    {ACL_UINT16, "u16"}, {ACL_UINT32, "u32"},
    {ACL_UINT64, "u64"},  {ACL_BOOL, "bool"},
};

const char *op_dtype(aclDataType dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "unknown";
}

/* Whether `word` stands in a list of words. */
static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; at != NULL && *at != '\0'; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        if (strncmp(at, word, n) == 0 && (at[n] == ' ' || at[n] == '\0'))
            return true;
    }
    return false;
}

/* The code that an operator's line gives for a dtype: 0 where it runs. */
static int verdict(const char *line, const char *dtype)
{
    char runs[256], key[16];
    const char *codes = strchr(line, '|');
    size_t n = codes != NULL ? (size_t)(codes - line) : strlen(line);
    snprintf(runs, sizeof runs, "%.*s", (int)n, line);
    if (listed(runs, dtype))
        return 0;
    for (int any = 0; codes != NULL && any < 2; any++) {
        snprintf(key, sizeof key, " %s=", any ? "*" : dtype);
        const char *found = strstr(codes, key);
        if (found != NULL)
            return atoi(found + strlen(key));
    }
    return ACLNN_NULLPTR;
}

static void check_dtypes(op *o)
{
    char key[80];
    snprintf(key, sizeof key, "op %s", o->name);
    const char *line = sim_chip(key);
    if (line == NULL) {
        op_refuse(o, ACLNN_NULLPTR, "%s has no kernel for it", sim_chip("name"));
        return;
    }
    for (int i = 0; i < o->computes && o->code == 0; i++) {
        const char *dtype = op_dtype(o->computed[i]->dtype);
        int code = verdict(line, dtype);
        if (code != 0)
            op_refuse(o, code, "%s has no kernel for %s", sim_chip("name"), dtype);
    }
}

/* 310B: "kernel pointer null" for an Mm with M >= 64 and K > 4096 (`rule deep-mm M K`). Nobody
   has measured other products: they have that limit by the fault `deep=NAME`. */
static void deep_mm(op *o)
{
    long rows, deep;
    const char *rule = sim_chip("rule deep-mm");
    if (rule == NULL || sscanf(rule, "%ld %ld", &rows, &deep) != 2 ||
        (strcmp(o->name, "Mm") != 0 && !sim_fault_is("deep", o->name)))
        return;
    if (op_dim(o->computed[0], -2) >= rows && op_dim(o->computed[0], -1) > deep)
        op_refuse(o, ACLNN_RUNTIME_ERROR, "kernel pointer null: M >= %ld and K > %ld", rows,
                  deep);
}

/* 310B: after an Add whose out is one of its inputs, each Mm fails (`rule alias-add`). */
static void alias_add(op *o)
{
    static atomic_bool poisoned;
    if (sim_chip("rule alias-add") == NULL)
        return;
    if (strcmp(o->name, "Add") == 0)
        for (int i = 0; i < 2; i++)
            if (op_slot_view(o, i)->data == op_slot_view(o, 2)->data &&
                op_slot_view(o, i)->offset == op_slot_view(o, 2)->offset)
                poisoned = true;
    if (poisoned && strcmp(o->name, "Mm") == 0)
        op_refuse(o, ACLNN_RUNTIME_ERROR,
                  "kernel pointer null: an Add wrote over its input before");
}

/* 910B: no kernel for strided views into these (`rule strided NAMES`; of a Matmul only those
   with three and more axes: matrices may be transposed). A Cat that failed so leaves each later
   Cat failing. */
static void strided(op *o)
{
    static atomic_bool poisoned;
    const char *rule = sim_chip("rule strided");
    if (rule == NULL || !listed(rule, o->name))
        return;
    bool cat = strcmp(o->name, "Cat") == 0, matmul = strcmp(o->name, "Matmul") == 0;
    if (cat && poisoned)
        op_refuse(o, ACLNN_NULLPTR, "an earlier Cat of strided views failed");
    for (int i = 0; i < o->call->slots && o->code == 0; i++) {
        const nnop_slot *slot = &o->call->slot[i];
        if (slot->out || op_contiguous(&slot->view) || (matmul && slot->view.axes < 3))
            continue;
        poisoned = poisoned || cat;
        op_refuse(o, ACLNN_NULLPTR, "a strided view, make it contiguous first");
    }
}

/* 310P: the last axis has so many bytes (`rule bytes-NAME N`), SwiGlu's halves multiples. */
static void aligned(op *o)
{
    char key[80];
    snprintf(key, sizeof key, "rule bytes-%s", o->name);
    const char *rule = sim_chip(key);
    if (rule == NULL)
        return;
    const nnop_view *x = o->computed[0];
    int64_t bytes = (int64_t)nnop_size(x->dtype, op_dim(x, -1)), least = atoi(rule);
    if (strcmp(o->name, "SwiGlu") == 0)
        op_need(o, bytes / 2 % least == 0, "its halves must be multiples of %lld bytes",
                (long long)least);
    else
        op_need(o, bytes >= least, "its rows must have %lld bytes", (long long)least);
}

/* 310P: products of float32 only with a cubeMathType that is less (`rule f32-down`). */
static void down_precision(op *o)
{
    if (sim_chip("rule f32-down") == NULL || o->call->integer[0] != 0)
        return;
    if (listed("Mm Matmul BatchMatMul Addmm Convolution", o->name))
        op_need(o, o->computed[0]->dtype != ACL_FLOAT, "float32 with cubeMathType 0");
}

/* What was asked for by UMBEL_CANN_FAULT: `kernel=NAME`, this operator's kernel package is
   missing; `crash=NAME`, its phase 1 kills the process; `wrong=NAME`, its results are wrong;
   `phase1=N`, the Nth phase 1 since then fails. */
static void faults(op *o)
{
    static atomic_long calls, known;
    long wanted = sim_fault("phase1");
    if (atomic_exchange(&known, wanted) != wanted)
        calls = 0;
    if (sim_fault_is("crash", o->name))
        raise(SIGSEGV);
    o->call->wrong = sim_fault_is("wrong", o->name);
    if (sim_fault_is("kernel", o->name))
        op_refuse(o, ACLNN_OPP_KERNEL_PKG_NOT_FOUND, "its kernel package is not installed");
    if (atomic_fetch_add(&calls, 1) + 1 == wanted)
        op_refuse(o, ACLNN_INNER, "phase 1 number %ld, as was asked for", wanted);
}

void op_chip(op *o)
{
    faults(o);
    check_dtypes(o);
    if (o->code != 0)
        return;
    deep_mm(o);
    alias_add(o);
    strided(o);
    aligned(o);
    down_precision(o);
}
