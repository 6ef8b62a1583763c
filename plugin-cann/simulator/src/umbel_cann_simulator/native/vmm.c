/* Address ranges and physical memory apart. Physical memory is a mapping that is moved into the
 * range and back, so that what is in it stays. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "rt.h"

enum { PIECE = 2 << 20 };

/* A range: addresses that the host knows, and those of workers (the same in the RC form). */
typedef struct range {
    struct range *next;
    char *at, *work;
    size_t size;
} range;

typedef struct {
    aclrtDrvMemHandle handle;
    int device;
    size_t size;
    char *memory; /* while it is not mapped */
    char *at;     /* while it is */
} physical;

static range *ranges;

static int ready(void)
{
    int code = rt_ready();
    if (!code && !rt_chip_says("vmm", "yes"))
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "this chip cannot map memory");
    return code;
}

/* The range that holds n bytes at an address. */
static range *range_of(const char *at, size_t n)
{
    range *r = ranges;
    while (r && (at < r->at || at >= r->at + r->size || n > (size_t)(r->at + r->size - at)))
        r = r->next;
    return r;
}

aclError aclrtMemGetAllocationGranularity(const aclrtPhysicalMemProp *prop, int option,
                                          size_t *granularity)
{
    RT_NEEDS(prop && granularity);
    RT_HOLD;
    int code = ready();
    if (code)
        return code;
    if (option != 0 && option != 1)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no granularity %d", option);
    *granularity = PIECE;
    return ACL_SUCCESS;
}

aclError aclrtReserveMemAddress(void **at, size_t size, size_t align, void *expect,
                                uint64_t flags)
{
    RT_NEEDS(at);
    RT_HOLD;
    int code = ready();
    if (code)
        return code;
    if (!size || size % PIECE || align || expect || flags > 1)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "a range of %zu bytes: pieces of %d, no "
                        "alignment and no address of one's own", size, PIECE);
    range *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->size = size;
    r->at = rt_map(size, false);
    r->work = rt.rc ? r->at : rt_map(size, false);
    if (!r->at || !r->work) {
        if (r->at)
            munmap(r->at, size);
        free(r);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no range of %zu bytes", size);
    }
    r->next = ranges;
    ranges = r;
    *at = r->at;
    return ACL_SUCCESS;
}

aclError aclrtReleaseMemAddress(void *at)
{
    range **link = &ranges;
    RT_NEEDS(at);
    RT_HOLD;
    int code = ready();
    if (code)
        return code;
    while (*link && (*link)->at != at)
        link = &(*link)->next;
    range *r = *link;
    if (!r)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%p begins no reserved range", at);
    for (char *piece = r->at; piece < r->at + r->size; piece += PIECE)
        if (rt_find(piece))
            return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "memory is still mapped at %p",
                            (void *)piece);
    munmap(r->at, r->size);
    if (r->work != r->at)
        munmap(r->work, r->size);
    *link = r->next;
    free(r);
    return ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size,
                             const aclrtPhysicalMemProp *prop, uint64_t flags)
{
    RT_NEEDS(handle && prop);
    RT_HOLD;
    int code = ready();
    if (code)
        return code;
    if (!size || size % PIECE)
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%zu bytes: no multiple of %d", size,
                        PIECE);
    if (flags || prop->handleType || prop->allocationType || prop->location.type != 1)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "only pinned memory of a device, flags 0");
    if ((code = rt_device_known((int)prop->location.id))
        || (code = rt_charge((int)prop->location.id, size)))
        return code;
    physical *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->device = (int)prop->location.id;
    p->size = size;
    p->memory = rt_map(size, true);
    if (!p->memory) {
        rt.devices[p->device].used -= size;
        free(p);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no %zu bytes", size);
    }
    memset(p->memory, RT_JUNK, size); /* a mapping of one piece, which can be moved */
    sim_count("physicals", 1);
    *handle = p->handle = rt_handle(RT_PHYSICAL, p);
    return ACL_SUCCESS;
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle)
{
    RT_NEEDS(handle);
    RT_HOLD;
    int code = ready();
    physical *p = rt_thing(RT_PHYSICAL, handle);
    if (code)
        return code;
    if (!p || p->at)
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p: no memory, or still mapped", handle);
    rt.devices[p->device].used -= p->size;
    munmap(p->memory, p->size);
    rt_handle_end(handle);
    free(p);
    return ACL_SUCCESS;
}

aclError aclrtMapMem(void *at, size_t size, size_t offset, aclrtDrvMemHandle handle,
                     uint64_t flags)
{
    RT_NEEDS(at && handle);
    RT_HOLD;
    int code = ready();
    physical *p = rt_thing(RT_PHYSICAL, handle);
    range *r = range_of(at, size);
    if (code)
        return code;
    if (!p || p->at || size != p->size || offset || flags)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtMapMem: memory of that size that is "
                        "not mapped, offset and flags 0");
    if (!r || ((char *)at - r->at) % PIECE)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%p is no place in a reserved range", at);
    for (size_t i = 0; i < size; i += PIECE)
        if (rt_find((char *)at + i))
            return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%p is mapped already", at);
    char *work = r->work + ((char *)at - r->at);
    if (mremap(p->memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, work) == MAP_FAILED)
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host cannot map %zu bytes", size);
    p->at = at;
    p->memory = NULL;
    rt_region_add(&(rt_region){.at = at, .work = work, .size = size, .kind = RT_MAPPED,
                               .device = p->device});
    return ACL_SUCCESS;
}

aclError aclrtUnmapMem(void *at)
{
    physical *p;
    size_t place = 0;
    RT_NEEDS(at);
    RT_HOLD;
    int code = ready();
    if (code)
        return code;
    while ((p = rt_next(RT_PHYSICAL, &place)) && p->at != at)
        ;
    if (!p)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "nothing is mapped at %p", at);
    rt_region *region = rt_find(at);
    char *work = region->work, *kept = rt_map(p->size, true);
    rt.quiet++; /* it moves: no task may be at it */
    while (rt.running)
        pthread_cond_wait(&rt.changed, &rt.lock);
    rt.quiet--;
    if (!kept || mremap(work, p->size, p->size, MREMAP_MAYMOVE | MREMAP_FIXED, kept) != kept)
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host cannot unmap %p", at);
    mmap(work, p->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
    p->memory = kept;
    p->at = NULL;
    rt_region_remove(rt_find(at));
    return ACL_SUCCESS;
}
