/* Copies and fills. The pointers settle the direction; the kind only has to be honest about
 * what it calls the device's. A call that blocks does not wait for any stream. */
#include <stdlib.h>
#include <string.h>

#include "rt.h"

typedef enum { HOST, PINNED, DEVICE } side;

/* One transfer, by the addresses that the caller knows; a fill has no source. */
typedef struct {
    char *dst;
    const char *src;
    size_t dpitch, spitch, width, height;
    int value;
    side to, from;
} transfer;

/* The bytes from the first to the last. */
static size_t span(size_t pitch, const transfer *t)
{
    return (t->height - 1) * pitch + t->width;
}

/* What memory it is, and whether so much of it is there. */
static int look(const void *at, size_t n, bool device, side *found)
{
    rt_region *region = rt_find(at);
    *found = !region ? HOST : region->kind == RT_PINNED ? PINNED : DEVICE;
    if (!region && device && !rt.rc)
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is no device memory (now)", at);
    if (region && !rt_reach(at, n))
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%zu bytes at %p pass the end", n, at);
    return 0;
}

static int peers_fail(const rt_context *context, const void *at)
{
    rt_region *region = rt_find(at);
    if (!region || !rt_foreign(context->device, region))
        return 0;
    return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "device %d may not reach memory of device %d",
                    context->device, region->device);
}

static int check(rt_context *context, transfer *t, aclrtMemcpyKind kind)
{
    bool to = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE
        || kind >= ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE;
    bool from = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE
        || kind >= ACL_MEMCPY_INNER_DEVICE_TO_DEVICE;
    if ((unsigned)kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "there is no copy of kind %d", (int)kind);
    int code = look(t->dst, span(t->dpitch, t), to, &t->to);
    if (code || (code = look(t->src, span(t->spitch, t), from, &t->from)))
        return code;
    if (t->to == DEVICE && t->from == DEVICE && !(code = peers_fail(context, t->dst)))
        code = peers_fail(context, t->src);
    return code;
}

static void count(const transfer *t)
{
    const char *what = t->to == DEVICE ? t->from == DEVICE ? "d2d_bytes" : "h2d_bytes"
        : t->from == DEVICE ? "d2h_bytes" : "h2h_bytes";
    if (t->src)
        sim_count(what, (long)(t->width * t->height));
}

/* Moves the bytes. False: memory of ours has gone meanwhile. The lock is held, and let go while
 * it works; what is freed then stays until no task runs. */
static bool move(const transfer *t)
{
    char *to = t->to == HOST ? t->dst : rt_reach(t->dst, span(t->dpitch, t));
    const char *from = t->from == HOST ? t->src : rt_reach(t->src, span(t->spitch, t));
    if (!to || (t->src && !from))
        return false;
    rt.running++;
    pthread_mutex_unlock(&rt.lock);
    for (size_t row = 0; row < t->height; row++)
        if (t->src)
            memmove(to + row * t->dpitch, from + row * t->spitch, t->width);
        else
            memset(to + row * t->dpitch, t->value, t->width);
    pthread_mutex_lock(&rt.lock);
    rt.running--;
    rt_reap();
    return true;
}

static void run(void *arg)
{
    pthread_mutex_lock(&rt.lock);
    bool done = move(arg);
    pthread_mutex_unlock(&rt.lock);
    if (!done)
        sim_task_fault(ACL_ERROR_RT_AICORE_EXCEPTION, "a copy's memory was freed before");
}

/* Queues it. Memory that is not pinned is the caller's again at the return: this waits. */
static int queue(rt_stream *stream, const transfer *t)
{
    sim_task task = {.name = t->src ? "copy" : "fill", .run = run, .drop = free};
    bool pageable = t->to == HOST || (t->src && t->from == HOST);
    if (t->src && t->to != DEVICE && t->from != DEVICE && !rt.rc)
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "an async copy within the host");
    if (pageable && stream->capture)
        return sim_fail(ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC,
                        "a captured copy needs memory of aclrtMallocHost");
    transfer *copied = malloc(sizeof *copied);
    if (!copied)
        abort();
    *copied = *t;
    task.arg = copied;
    task.bytes = (double)(t->width * t->height);
    int code = rt_submit(stream, &task, false);
    if (code) {
        free(copied);
        return code;
    }
    sim_count("copies", 1);
    count(t);
    return pageable ? rt_wait(stream, stream->submitted, -1) : ACL_SUCCESS;
}

/* A copy now, or in a stream. */
static int copy(transfer *t, aclrtMemcpyKind kind, bool async, aclrtStream handle)
{
    rt_context *context;
    rt_stream *stream;
    int code = rt_here(&context);
    if (code || (async && (code = rt_stream_of(handle, &stream))))
        return code;
    if (!t->dst || !t->src)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "aclrtMemcpy: from %p to %p",
                        (const void *)t->src, (void *)t->dst);
    if ((code = check(context, t, kind)) || async)
        return code ? code : queue(stream, t);
    if ((code = rt_capture_forbids("aclrtMemcpy")))
        return code;
    count(t);
    move(t);
    return ACL_SUCCESS;
}

static int copy1d(void *dst, size_t max, const void *src, size_t n, aclrtMemcpyKind kind,
                  bool async, aclrtStream stream)
{
    transfer t = {.dst = dst, .src = src, .width = n, .height = 1};
    RT_HOLD;
    if (n > max)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpy: %zu bytes into %zu", n, max);
    return n ? copy(&t, kind, async, stream) : rt_ready();
}

static int copy2d(transfer t, aclrtMemcpyKind kind, bool async, aclrtStream stream)
{
    RT_HOLD;
    if (rt.rc)
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "aclrtMemcpy2d on this chip");
    if (t.width > t.dpitch || t.width > t.spitch)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemcpy2d: rows of %zu in %zu and %zu",
                        t.width, t.dpitch, t.spitch);
    return t.width && t.height ? copy(&t, kind, async, stream) : rt_ready();
}

static int fill(void *at, size_t max, int value, size_t n, bool async, aclrtStream handle)
{
    transfer t = {.dst = at, .value = value, .width = n, .height = 1};
    rt_context *context;
    rt_stream *stream;
    RT_HOLD;
    int code = rt_here(&context);
    if (code || (async && (code = rt_stream_of(handle, &stream))))
        return code;
    if (!at)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "aclrtMemset: at NULL");
    if (n > max)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMemset: %zu bytes into %zu", n, max);
    if (!n || (code = look(at, n, true, &t.to)) || async)
        return code || !n ? code : queue(stream, &t);
    if ((code = rt_capture_forbids("aclrtMemset")))
        return code;
    move(&t);
    return ACL_SUCCESS;
}

aclError aclrtMemcpy(void *dst, size_t max, const void *src, size_t n, aclrtMemcpyKind kind)
{
    return copy1d(dst, max, src, n, kind, false, NULL);
}

aclError aclrtMemcpyAsync(void *dst, size_t max, const void *src, size_t n,
                          aclrtMemcpyKind kind, aclrtStream stream)
{
    return copy1d(dst, max, src, n, kind, true, stream);
}

aclError aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                       size_t height, aclrtMemcpyKind kind)
{
    transfer t = {dst, src, dpitch, spitch, width, height, 0, HOST, HOST};
    return copy2d(t, kind, false, NULL);
}

aclError aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                            size_t width, size_t height, aclrtMemcpyKind kind,
                            aclrtStream stream)
{
    transfer t = {dst, src, dpitch, spitch, width, height, 0, HOST, HOST};
    return copy2d(t, kind, true, stream);
}

aclError aclrtMemset(void *at, size_t max, int32_t value, size_t n)
{
    return fill(at, max, value, n, false, NULL);
}

aclError aclrtMemsetAsync(void *at, size_t max, int32_t value, size_t n, aclrtStream stream)
{
    return fill(at, max, value, n, true, stream);
}
