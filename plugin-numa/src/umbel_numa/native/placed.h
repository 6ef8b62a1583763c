/* Where the groups of packed weights lie, and which threads they fall to. */
#ifndef UN_PLACED_H
#define UN_PLACED_H

#include "un.h"

/* The groups of a matrix that `parts` threads share, and which of these this thread is; they
 * are read from `node`. */
typedef struct un_own {
    int node;
    int part, parts;
    int64_t from, to;
} un_own;

static inline un_own un_own_of(const un_task *task, const un_weight *w, int64_t matrix)
{
    un_own own = {0, task->thread, task->threads, 0, w->groups};
    if (w->nodes == 1)
        return own;
    own.node = task->node;
    if (w->split == UN_COPIES)
        return own;
    const int64_t *first = w->first + task->node;
    own.part = task->rank, own.parts = task->size;
    if (w->split == UN_BY_ROWS)
        own.from = first[0], own.to = first[1];
    else if (matrix < first[0] || matrix >= first[1])
        own.to = 0;
    return own;
}

/* Group g of a matrix among those that the node holds. */
static inline const uint8_t *un_group_of(const un_weight *w, int node, int64_t matrix,
                                         int64_t g)
{
    const int64_t *first = w->first + node;
    int64_t i = matrix * w->groups + g;
    if (w->split == UN_BY_ROWS)
        i = matrix * (first[1] - first[0]) + g - first[0];
    else if (w->split == UN_BY_MATRICES)
        i -= first[0] * w->groups;
    return (const uint8_t *)w->data[node] + i * w->group_bytes;
}

/* A node that holds the group; `near` where all do. */
static inline int un_holder(const un_weight *w, int near, int64_t matrix, int64_t g)
{
    int node = 0;
    if (w->split == UN_COPIES)
        return near < w->nodes ? near : 0;
    while ((w->split == UN_BY_ROWS ? g : matrix) >= w->first[node + 1])
        node++;
    return node;
}

/* How many groups a node holds, of all matrices; they lie in the order of un_held_at. */
static inline int64_t un_held(const un_weight *w, int node)
{
    int64_t here = w->first[node + 1] - w->first[node];
    if (w->split == UN_COPIES)
        return w->count * w->groups;
    return here * (w->split == UN_BY_ROWS ? w->count : w->groups);
}

/* The matrix and the group that are the node's number i. */
static inline void un_held_at(const un_weight *w, int node, int64_t i, int64_t *matrix,
                              int64_t *g)
{
    int64_t here = w->split == UN_BY_ROWS ? w->first[node + 1] - w->first[node] : w->groups;
    *matrix = i / here + (w->split == UN_BY_MATRICES ? w->first[node] : 0);
    *g = i % here + (w->split == UN_BY_ROWS ? w->first[node] : 0);
}

#endif
