/* Callbacks: a stream hands a function to the thread that subscribed to it. */
#include <stdlib.h>

#include "rt.h"

typedef struct call {
    struct call *next;
    aclrtCallback run;
    void *arg;
    pthread_t thread;
    bool blocks, done;        /* the stream waits for it; finished */
    int refs;                 /* the stream's task, the list */
} call;

static call *calls; /* handed over, the oldest first */

static void release(call *c)
{
    if (!--c->refs)
        free(c);
}

static void run_call(void *arg)
{
    call *c = arg, **end = &calls;
    rt_stream *stream = rt_running_stream();
    RT_HOLD;
    while (*end)
        end = &(*end)->next;
    *end = c;
    c->refs++;
    pthread_cond_broadcast(&rt.changed);
    while (c->blocks && !c->done && !stream->abort)
        pthread_cond_wait(&rt.changed, &rt.lock);
}

static void drop_call(void *arg)
{
    RT_HOLD;
    release(arg);
}

aclError aclrtLaunchCallback(aclrtCallback run, void *arg, aclrtCallbackBlockType type,
                             aclrtStream handle)
{
    rt_stream *stream;
    RT_NEEDS(run);
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if ((unsigned)type > ACL_CALLBACK_BLOCK)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no callback type %d", (int)type);
    if (!stream->subscribed)
        return sim_fail(ACL_ERROR_RT_STREAM_NO_CB_REG, "no thread subscribed to the stream");
    if (stream->capture)
        return rt_capture_breaks(stream, "aclrtLaunchCallback");
    call *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    *c = (call){.run = run, .arg = arg, .thread = stream->subscriber, .refs = 1,
                .blocks = type == ACL_CALLBACK_BLOCK};
    code = rt_submit(stream, &(sim_task){"callback", run_call, drop_call, c, 0, 0}, true);
    if (code)
        free(c);
    return code;
}

aclError aclrtSubscribeReport(uint64_t thread, aclrtStream handle)
{
    rt_stream *stream;
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if (stream->subscribed)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the stream has a subscriber");
    stream->subscribed = true;
    stream->subscriber = (pthread_t)thread;
    return ACL_SUCCESS;
}

aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream handle)
{
    rt_stream *stream;
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if (!stream->subscribed || !pthread_equal(stream->subscriber, (pthread_t)thread))
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "this is not the stream's subscriber");
    stream->subscribed = false;
    return ACL_SUCCESS;
}

/* The oldest for this thread, taken from the list. */
static call *mine(void)
{
    for (call **link = &calls; *link; link = &(*link)->next)
        if (pthread_equal((*link)->thread, pthread_self())) {
            call *c = *link;
            *link = c->next;
            return c;
        }
    return NULL;
}

aclError aclrtProcessReport(int32_t ms)
{
    struct timespec end = rt_after(ms);
    call *c;
    RT_HOLD;
    int code = rt_started();
    if (code)
        return code;
    if (ms < -1)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "a timeout of %d ms", (int)ms);
    while (!(c = mine()))
        if (!rt_changes(ms, &end))
            return sim_fail(ACL_ERROR_WAIT_CALLBACK_TIMEOUT, "no callback in %d ms", (int)ms);
    pthread_mutex_unlock(&rt.lock);
    c->run(c->arg);
    pthread_mutex_lock(&rt.lock);
    c->done = true;
    pthread_cond_broadcast(&rt.changed);
    release(c);
    return ACL_SUCCESS;
}
