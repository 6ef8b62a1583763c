#include "pages.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>

enum { BIND = 2, MOVE = 2 };  /* MPOL_BIND, MPOL_MF_MOVE: linux/mempolicy.h may be absent */
enum { BATCH = 512, MAX_NODES = 1024, TRIES = 3 };
#endif

static const int64_t HUGE_PAGE = 2 << 20;

int64_t un_pages_size(void)
{
    return sysconf(_SC_PAGESIZE);
}

static uintptr_t up(uintptr_t value, int64_t unit)
{
    return (value + (uintptr_t)unit - 1) / (uintptr_t)unit * (uintptr_t)unit;
}

static void *map(int64_t bytes)
{
    int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    return mmap(NULL, (size_t)bytes, access, kind, -1, 0);
}

void *un_pages_alloc(int64_t bytes, int huge)
{
    if (bytes <= 0 || bytes > INT64_MAX / 2) {
        errno = EINVAL;
        return NULL;
    }
    int64_t whole = (int64_t)up((uintptr_t)bytes, un_pages_size());
    int64_t spare = huge && bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    char *start = map(whole + spare);
    if (start == MAP_FAILED)
        return NULL;
    if (spare == 0)
        return start;
    char *aligned = (char *)up((uintptr_t)start, HUGE_PAGE);
    int64_t before = aligned - start;
    if (before > 0)
        munmap(start, (size_t)before);
    if (spare > before)
        munmap(aligned + whole, (size_t)(spare - before));
#ifdef MADV_HUGEPAGE
    int kept = errno;
    madvise(aligned, (size_t)whole, MADV_HUGEPAGE);  /* a wish: small pages work too */
    errno = kept;
#endif
    return aligned;
}

int un_pages_free(void *addr, int64_t bytes)
{
    if (addr == NULL)
        return 0;
    size_t whole = up((uintptr_t)bytes, un_pages_size());
    return munmap(addr, whole) == 0 ? 0 : -errno;
}

int un_pages_drop(void *addr, int64_t bytes)
{
    int64_t page = un_pages_size();
    uintptr_t first = up((uintptr_t)addr, page);
    uintptr_t end = ((uintptr_t)addr + (uintptr_t)bytes) / (uintptr_t)page * (uintptr_t)page;
    if (bytes <= 0 || end <= first)
        return 0;
    return madvise((void *)first, end - first, MADV_DONTNEED) == 0 ? 0 : -errno;
}

int64_t un_pages_absent(void *addr, int64_t bytes)
{
    enum { MANY = 4096 };
    char there[MANY];
    int64_t page = un_pages_size(), absent = 0;
    uintptr_t end = up((uintptr_t)addr + (uintptr_t)bytes, page);
    for (uintptr_t at = up((uintptr_t)addr, page); at < end; at += (uintptr_t)(MANY * page)) {
        int64_t left = (int64_t)(end - at) / page, count = left < MANY ? left : MANY;
        if (mincore((void *)at, (size_t)(count * page), (void *)there) < 0)
            return -errno;
        for (int64_t i = 0; i < count; i++)
            absent += (there[i] & 1) == 0;
    }
    return absent * page;
}

#ifdef __linux__

int un_pages_bind(void *addr, int64_t bytes, int node)
{
    enum { WORD = 8 * sizeof(unsigned long) };
    int64_t page = un_pages_size();
    uintptr_t first = up((uintptr_t)addr, page);
    uintptr_t end = up((uintptr_t)addr + (uintptr_t)bytes, page);
    unsigned long mask[MAX_NODES / WORD] = {0};
    if (node < 0 || node >= MAX_NODES || bytes < 0)
        return -EINVAL;
    if (end == first)
        return 0;
    mask[node / WORD] = 1ul << node % WORD;
    /* the kernel takes one from the number of bits */
    long refused = syscall(SYS_mbind, first, end - first, BIND, mask, MAX_NODES + 1, MOVE);
    return refused ? -errno : 0;
}

/* One call of move_pages for `count` pages from `first`; to nowhere (`node` < 0) it asks. */
static int ask(uintptr_t first, int count, int node, int *status)
{
    void *pages[BATCH];
    int nodes[BATCH];
    int64_t page = un_pages_size();
    for (int i = 0; i < count; i++) {
        pages[i] = (void *)(first + (uintptr_t)(i * page));
        nodes[i] = node;
        status[i] = -EAGAIN;
    }
    int *to = node < 0 ? NULL : nodes;
    return syscall(SYS_move_pages, 0, count, pages, to, status, MOVE) < 0 ? -errno : 0;
}

/* 0, or why the first page of the batch that is not on `node` is not. */
static int move_batch(uintptr_t first, int count, int node)
{
    int status[BATCH];
    int failed = 0;
    bool busy = true;
    for (int try = 0; try < TRIES && busy; try++) {  /* a page may be in use just now */
        int refused = ask(first, count, node, status);
        if (refused < 0)
            return refused;
        failed = 0;
        busy = false;
        for (int i = 0; i < count; i++) {
            if (status[i] == node)
                continue;
            /* of a batch that moved in part the kernel leaves every status untouched */
            int why = status[i] >= 0 || status[i] == -EAGAIN ? -EBUSY : status[i];
            busy = busy || why == -EBUSY;
            failed = failed < 0 ? failed : why;
        }
    }
    return failed;
}

int un_pages_move(void *addr, int64_t bytes, int node)
{
    int64_t page = un_pages_size();
    uintptr_t end = up((uintptr_t)addr + (uintptr_t)bytes, page);
    int result = 0;
    if (node < 0 || bytes < 0)
        return -EINVAL;
    for (uintptr_t at = up((uintptr_t)addr, page); at < end; at += (uintptr_t)(BATCH * page)) {
        int64_t left = (int64_t)(end - at) / page;
        int failed = move_batch(at, left < BATCH ? (int)left : BATCH, node);
        if (failed == -EPERM || failed == -ENOSYS || failed == -ENODEV)
            return failed;  /* the next batch would hear the same */
        if (result == 0)
            result = failed;
    }
    return result;
}

int un_pages_where(void *addr, int64_t bytes, int64_t *counts, int nodes)
{
    int64_t page = un_pages_size();
    uintptr_t end = up((uintptr_t)addr + (uintptr_t)bytes, page);
    int status[BATCH];
    if (bytes < 0 || nodes < 0)
        return -EINVAL;
    for (int i = 0; i <= nodes; i++)
        counts[i] = 0;
    for (uintptr_t at = up((uintptr_t)addr, page); at < end; at += (uintptr_t)(BATCH * page)) {
        int64_t left = (int64_t)(end - at) / page;
        int count = left < BATCH ? (int)left : BATCH;
        int refused = ask(at, count, -1, status);
        if (refused < 0)
            return refused;
        for (int i = 0; i < count; i++)
            counts[status[i] >= 0 && status[i] < nodes ? status[i] : nodes]++;
    }
    return 0;
}

#else  /* no NUMA to ask about */

int un_pages_bind(void *addr, int64_t bytes, int node)
{
    (void)addr, (void)bytes, (void)node;
    return -ENOSYS;
}

int un_pages_move(void *addr, int64_t bytes, int node)
{
    (void)addr, (void)bytes, (void)node;
    return -ENOSYS;
}

int un_pages_where(void *addr, int64_t bytes, int64_t *counts, int nodes)
{
    (void)addr, (void)bytes;
    for (int i = 0; i <= nodes; i++)
        counts[i] = 0;
    return -ENOSYS;
}

#endif
