/* Executors: one-shot, which phase 2 uses up, and repeatable, whose addresses may change.

   A one-shot executor that is used twice, or any that is used after its end, ends the process
   (nnop_die): on a device it would be a use of freed memory. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "nnop_object.h"

enum { POOL = 10000, ALIGNMENT = 32 };

struct aclOpExecutor {
    uint32_t magic;
    bool repeatable;
    nnop_call *call;
};

/* One launch, on its way to the device's worker. */
typedef struct {
    uint64_t number;
    nnop_call call; /* and its slots behind it */
} launch;

static atomic_int waiting;       /* executors between phase 1 and their end */
static atomic_ullong launches;

aclOpExecutor *nnop_executor(nnop_call *call)
{
    if (atomic_fetch_add(&waiting, 1) >= POOL) {
        atomic_fetch_sub(&waiting, 1);
        return NULL;
    }
    aclOpExecutor *executor = nnop_new(NNOP_EXECUTOR, sizeof *executor);
    if (executor != NULL)
        executor->call = call;
    return executor;
}

static void executor_end(aclOpExecutor *executor)
{
    free(executor->call);
    executor->call = NULL;
    atomic_fetch_sub(&waiting, 1);
    nnop_dead(executor, NNOP_EXECUTOR);
}

/* The workspace belongs to the operator until it has run. While it runs it holds a number that
   no other launch has: who writes or frees it meanwhile is told. That is a race, and not one of
   the simulator's own. */
#define RACES __attribute__((noinline, no_sanitize("thread")))

RACES static void hold(uint64_t *workspace, size_t words, uint64_t number)
{
    for (size_t i = 0; i < words; i++)
        workspace[i] = number;
}

RACES static bool held(const uint64_t *workspace, size_t words, uint64_t number)
{
    size_t same = 0;
    while (same < words && workspace[same] == number)
        same++;
    return same == words;
}

/* The first element of each result becomes another. */
static void spoil(const nnop_call *call)
{
    for (int i = 0; i < call->slots; i++) {
        const nnop_view *view = &call->slot[i].view;
        size_t before = nnop_size(view->dtype, view->offset), size = nnop_size(view->dtype, 1);
        if (!call->slot[i].out || nnop_elements(view) == 0)
            continue;
        unsigned char *at = sim_at((const char *)view->data + before, size);
        if (at != NULL)
            at[size - 1] ^= 0x55;
    }
}

static void launch_run(void *argument)
{
    const launch *now = argument;
    const nnop_call *call = &now->call;
    size_t words = call->workspace_size / sizeof(uint64_t);
    uint64_t *workspace = words > 0 ? sim_at(call->workspace, call->workspace_size) : NULL;
    if (workspace == NULL && words > 0) {
        sim_task_fault(507015, "%s: its workspace was freed, or is not the device's",
                       call->name);
        return;
    }
    hold(workspace, words, now->number);
    call->run(call);
    if (call->wrong)
        spoil(call);
    if (!held(workspace, words, now->number))
        sim_task_fault(507015, "%s: its workspace was written while it ran", call->name);
}

static launch *launch_new(const nnop_call *call, void *workspace)
{
    size_t size = sizeof(nnop_call) + (size_t)call->slots * sizeof(nnop_slot);
    launch *now = malloc(offsetof(launch, call) + size);
    if (now == NULL)
        return NULL;
    now->number = 0x9e3779b97f4a7c15u * (atomic_fetch_add(&launches, 1) + 1);
    memcpy(&now->call, call, size);
    now->call.workspace = workspace;
    return now;
}

static aclnnStatus submit(const char *name, void *workspace, uint64_t size,
                          const nnop_call *call, aclrtStream stream)
{
    if (call->workspace_size > 0 && workspace == NULL)
        return sim_fail(ACLNN_PARAM_NULLPTR,
                        "aclnn%s: the workspace is NULL, it asked for %llu bytes", name,
                        (unsigned long long)call->workspace_size);
    if (size < call->workspace_size)
        return sim_fail(ACLNN_PARAM_INVALID,
                        "aclnn%s: a workspace of %llu bytes, it asked for %llu", name,
                        (unsigned long long)size, (unsigned long long)call->workspace_size);
    int code = sim_ready();
    if (code != 0)
        return sim_fail(ACLNN_RUNTIME_ERROR, "aclnn%s: the runtime answers %d", name, code);
    launch *now = launch_new(call, workspace);
    if (now == NULL)
        return sim_fail(ACLNN_INNER, "aclnn%s: no memory for a launch", name);
    sim_task task = {call->name, launch_run, free, now, call->flops, call->bytes};
    code = sim_submit(stream, &task);
    return code == 0 ? 0 : sim_fail(ACLNN_RUNTIME_ERROR, "aclnn%s: the stream answers %d", name,
                                    code);
}

aclnnStatus nnop_launch(const char *name, void *workspace, uint64_t size,
                        aclOpExecutor *executor, aclrtStream stream)
{
    if (executor == NULL)
        return sim_fail(ACLNN_PARAM_NULLPTR, "aclnn%s: the executor is NULL", name);
    executor = nnop_alive(executor, NNOP_EXECUTOR, name);
    if (strcmp(executor->call->name, name) != 0)
        nnop_die("aclnn%s: phase 2 of an executor of aclnn%s", name, executor->call->name);
    int code = submit(name, workspace, size, executor->call, stream);
    if (!executor->repeatable)
        executor_end(executor);
    return code;
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    if (executor == NULL)
        return sim_fail(ACLNN_PARAM_NULLPTR,
                        "aclSetAclOpExecutorRepeatable: the executor is NULL");
    executor = nnop_alive(executor, NNOP_EXECUTOR, "aclSetAclOpExecutorRepeatable");
    if (executor->call->once)
        return sim_fail(ACLNN_INNER,
                        "aclSetAclOpExecutorRepeatable: this aclnn%s copies a view "
                        "into place, which cannot be repeated", executor->call->name);
    executor->repeatable = true;
    return 0;
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    if (executor != NULL)
        executor_end(nnop_alive(executor, NNOP_EXECUTOR, "aclDestroyAclOpExecutor"));
    return 0;
}

/* Which tensors of a call an index counts. */
typedef enum { ALL, INPUTS, OUTPUTS } side;

/* The `index`th argument of this side, its `member`th tensor (-1: it is no list). */
static nnop_slot *find(nnop_call *call, side which, size_t index, int64_t member)
{
    size_t seen = 0;
    int last = -1;
    for (int i = 0; i < call->slots; i++) {
        nnop_slot *slot = &call->slot[i];
        if ((which == INPUTS && slot->out) || (which == OUTPUTS && !slot->out))
            continue;
        if (last >= 0 && slot->argument != last)
            seen++;
        last = slot->argument;
        if (seen == index && slot->member == member)
            return slot;
    }
    return NULL;
}

static aclnnStatus set_address(aclOpExecutor *executor, side which, size_t index,
                               int64_t member, const aclTensor *tensor, void *address,
                               const char *function)
{
    nnop_slot *slot = find(executor->call, which, index, member);
    if (slot == NULL || slot->handle == NULL)
        return sim_fail(ACLNN_PARAM_INVALID, "%s: aclnn%s has no tensor %zu of this kind",
                        function, executor->call->name, index);
    if (tensor != NULL && slot->handle != tensor)
        return sim_fail(ACLNN_PARAM_INVALID,
                        "%s: tensor %zu of aclnn%s was another one in phase 1", function, index,
                        executor->call->name);
    if ((uintptr_t)address % ALIGNMENT != 0)
        return sim_fail(ACLNN_PARAM_INVALID, "%s: the address %p is no multiple of %d",
                        function, address, ALIGNMENT);
    slot->view.data = address;
    return 0;
}

/* The vendor's headers have these under two spellings. */
#define ADDRESS(Function, which)                                                          \
    aclnnStatus acl##Function(aclOpExecutor *executor, size_t index, aclTensor *tensor,   \
                              void *address)                                              \
    {                                                                                     \
        if (executor == NULL || tensor == NULL || address == NULL)                        \
            return sim_fail(ACLNN_PARAM_NULLPTR, "acl" #Function ": NULL");               \
        nnop_alive(executor, NNOP_EXECUTOR, "acl" #Function);                             \
        nnop_alive(tensor, NNOP_TENSOR, "acl" #Function);                                 \
        return set_address(executor, which, index, -1, tensor, address, "acl" #Function); \
    }                                                                                     \
    ACL_API aclnnStatus Acl##Function(aclOpExecutor *executor, size_t index,              \
                                      aclTensor *tensor, void *address)                   \
    {                                                                                     \
        return acl##Function(executor, index, tensor, address);                           \
    }

#define LIST_ADDRESS(Function, which)                                                       \
    aclnnStatus acl##Function(aclOpExecutor *executor, size_t index, size_t member,         \
                              aclTensorList *list, void *address)                           \
    {                                                                                       \
        if (executor == NULL || list == NULL || address == NULL)                            \
            return sim_fail(ACLNN_PARAM_NULLPTR, "acl" #Function ": NULL");                 \
        nnop_alive(executor, NNOP_EXECUTOR, "acl" #Function);                               \
        nnop_alive(list, NNOP_TENSORS, "acl" #Function);                                    \
        return set_address(executor, which, index, (int64_t)member, NULL, address,          \
                           "acl" #Function);                                                \
    }                                                                                       \
    ACL_API aclnnStatus Acl##Function(aclOpExecutor *executor, size_t index, size_t member, \
                                      aclTensorList *list, void *address)                   \
    {                                                                                       \
        return acl##Function(executor, index, member, list, address);                       \
    }

ADDRESS(SetTensorAddr, ALL)
ADDRESS(SetInputTensorAddr, INPUTS)
ADDRESS(SetOutputTensorAddr, OUTPUTS)
LIST_ADDRESS(SetDynamicTensorAddr, ALL)
LIST_ADDRESS(SetDynamicInputTensorAddr, INPUTS)
LIST_ADDRESS(SetDynamicOutputTensorAddr, OUTPUTS)

static atomic_flag started = ATOMIC_FLAG_INIT;

/* Once for each process, beside aclInit or without it. */
aclnnStatus aclnnInit(const char *config)
{
    (void)config;
    if (atomic_flag_test_and_set(&started))
        return sim_fail(ACLNN_INNER, "aclnnInit was called before");
    return 0;
}

aclnnStatus aclnnFinalize(void)
{
    atomic_flag_clear(&started);
    return 0;
}
