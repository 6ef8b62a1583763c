/* Threads and barrier in one piece, with what only tests ask: what crossed between the nodes,
 * and where each node's part of the barrier lies. */
#include "barrier.c"
#include "pool.c"

typedef struct {
    un_pool *pool;
    int rounds;
} meetings;

static void meet(void *arg, int thread)
{
    meetings *all = arg;
    for (int i = 0; i < all->rounds; i++)
        un_pool_barrier(all->pool, thread);
}

/* Operations on the word where nodes meet, in `rounds` barriers of all threads; those of
 * threads that fall asleep apart. */
UN_API int64_t count_crossings(un_pool *pool, int rounds, int64_t *naps)
{
    meetings all = {pool, rounds};
    un_pool_run(pool, pool->made, meet, &all);
    un_crossings seen = un_barrier_crossings(pool->barrier);
    *naps = seen.naps;
    return seen.arrivals;
}

UN_API void *where_node_meets(un_pool *pool, int node)
{
    return pool->barrier->node[node];
}
