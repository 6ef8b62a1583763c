/* Memory: where the host and the device see the same bytes (RC) an allocation is one mapping;
 * else (EP) two: one that nobody may touch, whose address the host knows, and the bytes. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rt.h"

/* Addresses are given out as 64 (and no more) aligned; fresh memory is NaN as any float type.
 * What is large is made of copies of one junk file: it costs nothing until it is used. */
enum { LEAD = 64, PAGE = 4096, PIECE = 16 << 20 };

static rt_region *regions; /* by address */
static size_t count, room;
static rt_region *dead;    /* freed, but a task may still be at it */
static size_t dead_count, dead_room;

static void *grown(void *array, size_t used, size_t *have, size_t each)
{
    if (used < *have)
        return array;
    *have = *have ? 2 * *have : 64;
    if (!(array = realloc(array, *have * each)))
        abort();
    return array;
}

/* The first region that ends behind an address. */
static size_t place_of(const char *at)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions[middle].at + regions[middle].size <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

rt_region *rt_find(const void *at)
{
    size_t i = place_of(at);
    return i < count && regions[i].at <= (const char *)at ? &regions[i] : NULL;
}

/* Mapped regions that follow each other are as one. */
void *rt_reach(const void *at, size_t n)
{
    const char *from = at;
    rt_region *r = rt_find(at);
    if (!r)
        return NULL;
    char *work = r->work + (from - r->at);
    while ((size_t)(r->at + r->size - from) < n) {
        rt_region *next = r + 1;
        if (r->kind != RT_MAPPED || next == regions + count || next->kind != RT_MAPPED
            || next->at != r->at + r->size || next->work != r->work + r->size)
            return NULL;
        r = next;
    }
    return work;
}

void rt_region_add(const rt_region *region)
{
    size_t i = place_of(region->at);
    regions = grown(regions, count, &room, sizeof *regions);
    memmove(regions + i + 1, regions + i, (count - i) * sizeof *regions);
    regions[i] = *region;
    count++;
}

void rt_region_remove(rt_region *region)
{
    size_t i = (size_t)(region - regions);
    memmove(region, region + 1, (--count - i) * sizeof *regions);
}

char *rt_map(size_t size, bool reachable)
{
    int rights = reachable ? PROT_READ | PROT_WRITE : PROT_NONE;
    char *at = mmap(NULL, size, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int junk_file(void)
{
    static int file = -1;
    char page[PAGE];
    if (file >= 0 || (file = memfd_create("junk", MFD_CLOEXEC)) < 0)
        return file;
    memset(page, RT_JUNK, PAGE);
    for (size_t done = 0; done < PIECE; done += PAGE)
        if (write(file, page, PAGE) != PAGE) {
            close(file);
            return file = -1;
        }
    return file;
}

static void junk(char *at, size_t size)
{
    int file = size >= 2 * PIECE ? junk_file() : -1;
    size_t head = (size_t)-(uintptr_t)at % PAGE;
    const int how = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
    memset(at, RT_JUNK, file < 0 ? size : head);
    for (at += head, size -= head; file >= 0 && size >= PIECE; at += PIECE, size -= PIECE)
        if (mmap(at, PIECE, PROT_READ | PROT_WRITE, how, file, 0) == MAP_FAILED)
            break;
    if (file >= 0)
        memset(at, RT_JUNK, size);
}

static size_t memory_total(void)
{
    long wanted = sim_fault("memory");
    size_t total = (size_t)rt_chip_number("memory", 1e9);
    return wanted >= 0 && (size_t)wanted < total ? (size_t)wanted : total;
}

int rt_charge(int device, size_t size)
{
    size_t total = memory_total(), used = rt.devices[device].used;
    if (used > total || size > total - used)
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                        "device %d: %zu bytes wanted, %zu of %zu in use", device, size, used,
                        total);
    rt.devices[device].used += size;
    return 0;
}

static void unmap(const rt_region *region)
{
    munmap(region->map, region->map_size);
    if (region->work_map)
        munmap(region->work_map, region->map_size);
}

/* The size is what may be used, and what counts against the device unless it is the host's. */
static int allocate(void **at, size_t size, rt_memory kind, int device)
{
    bool apart = kind == RT_DEVICE_MEMORY && !rt.rc;
    rt_region r = {.size = size, .kind = kind, .device = device};
    r.charge = kind == RT_DEVICE_MEMORY || rt.rc ? size : 0;
    if (size > SIZE_MAX - 2 * PAGE)
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%zu bytes wanted", size);
    r.map_size = (size + LEAD + PAGE - 1) / PAGE * PAGE;
    int code = rt_charge(device, r.charge);
    if (code)
        return code;
    r.map = rt_map(r.map_size, !apart);
    r.work_map = r.map && apart ? rt_map(r.map_size, true) : NULL;
    if (!r.map || (apart && !r.work_map)) {
        rt.devices[device].used -= r.charge;
        if (r.map)
            munmap(r.map, r.map_size);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no %zu bytes", size);
    }
    r.at = r.map + LEAD;
    r.work = (apart ? r.work_map : r.map) + LEAD;
    junk(r.work, size);
    rt_region_add(&r);
    *at = r.at;
    return 0;
}

static void bury(rt_region *region)
{
    rt.devices[region->device].used -= region->charge;
    dead = grown(dead, dead_count, &dead_room, sizeof *dead);
    dead[dead_count++] = *region;
    rt_region_remove(region);
}

/* When no task runs, nobody is at what was freed. */
void rt_reap(void)
{
    if (!rt.running)
        while (dead_count)
            unmap(&dead[--dead_count]);
}

static int give_back(const char *what, void *at, rt_memory kind)
{
    rt_context *context;
    int code = rt_here(&context);
    if (code)
        return code;
    rt_region *region = rt_find(at);
    if (!region || region->at != at || region->kind != kind)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %p was not given out (or is freed)",
                        what, at);
    bury(region);
    rt_reap();
    return ACL_SUCCESS;
}

void rt_free_all(int device)
{
    for (size_t i = count; i-- > 0;)
        if (regions[i].device == device && regions[i].kind == RT_DEVICE_MEMORY)
            bury(&regions[i]);
    rt_reap();
}

void rt_memory_living(size_t *blocks, size_t *bytes)
{
    *blocks = *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        *blocks += 1;
        *bytes += regions[i].size;
    }
}

/* Devices reach each other's memory only where that was enabled. */
bool rt_foreign(int device, const rt_region *region)
{
    return region->kind != RT_PINNED && region->device != device
        && !(rt.devices[device].peers >> region->device & 1);
}

void *sim_at(const void *device, size_t n)
{
    RT_HOLD;
    rt_region *region = rt_find(device);
    rt_stream *stream = rt_running_stream();
    if (!region || (region->kind == RT_PINNED && !rt.rc))
        return NULL;
    bool foreign = stream && rt_foreign(stream->device, region);
    return foreign ? NULL : rt_reach(device, n);
}

static int policy_fails(aclrtMemMallocPolicy policy)
{
    int kind = (int)policy & 0xff, more = (int)policy & ~0xff;
    bool p2p = (kind >= ACL_MEM_MALLOC_HUGE_FIRST_P2P && kind <= ACL_MEM_MALLOC_NORMAL_ONLY_P2P)
        || kind == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
    if (kind > ACL_MEM_MALLOC_HUGE1G_ONLY_P2P
        || more & ~(ACL_MEM_TYPE_LOW_BAND_WIDTH | ACL_MEM_TYPE_HIGH_BAND_WIDTH))
        return sim_fail(ACL_ERROR_INVALID_PARAM, "there is no malloc policy %#x", (int)policy);
    if ((p2p && !rt_chip_says("peers", "yes"))
        || (kind >= ACL_MEM_MALLOC_HUGE1G_ONLY && !rt_chip_says("pages1g", "yes")))
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no malloc policy %d here", kind);
    return 0;
}

static int device_malloc(void **at, size_t size, size_t extra, aclrtMemMallocPolicy policy)
{
    rt_context *context;
    RT_HOLD;
    sim_count("mallocs", 1);
    int code = rt_here(&context);
    if (code)
        return code;
    if (!at || !size)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "aclrtMalloc: %zu bytes at %p", size,
                        (void *)at);
    if ((code = policy_fails(policy)))
        return code;
    if (size > SIZE_MAX - 64)
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%zu bytes wanted", size);
    size_t rounded = (size + 31) / 32 * 32 + extra;
    return allocate(at, rounded, RT_DEVICE_MEMORY, context->device);
}

aclError aclrtMalloc(void **at, size_t size, aclrtMemMallocPolicy policy)
{
    return device_malloc(at, size, 32, policy);
}

aclError aclrtMallocCached(void **at, size_t size, aclrtMemMallocPolicy policy)
{
    return device_malloc(at, size, 32, policy);
}

aclError aclrtMallocAlign32(void **at, size_t size, aclrtMemMallocPolicy policy)
{
    return device_malloc(at, size, 0, policy);
}

aclError aclrtFree(void *at)
{
    RT_NEEDS(at);
    RT_HOLD;
    return give_back("aclrtFree", at, RT_DEVICE_MEMORY);
}

aclError aclrtMallocHost(void **at, size_t size)
{
    rt_context *context;
    RT_HOLD;
    int code = rt_here(&context);
    if (code)
        return code;
    if (!at || !size)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "aclrtMallocHost: %zu bytes at %p", size,
                        (void *)at);
    return allocate(at, size, RT_PINNED, context->device);
}

aclError aclrtFreeHost(void *at)
{
    RT_NEEDS(at);
    RT_HOLD;
    return give_back("aclrtFreeHost", at, RT_PINNED);
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free_bytes, size_t *total)
{
    rt_context *context;
    RT_NEEDS(free_bytes && total);
    RT_HOLD;
    int code = rt_here(&context);
    if (code)
        return code;
    if ((unsigned)attr > ACL_HBM_MEM_P2P_HUGE1G)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "there is no memory of type %d", (int)attr);
    size_t used = rt.devices[context->device].used;
    *total = memory_total();
    *free_bytes = used < *total ? *total - used : 0;
    return ACL_SUCCESS;
}
