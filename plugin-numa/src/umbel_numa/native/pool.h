/* The threads that run the kernels: made once, asleep between runs, pinned where asked. */
#ifndef UN_POOL_H
#define UN_POOL_H

#include "barrier.h"

typedef struct un_pool un_pool;

/* Thread i sits on CPU cpus[i] (-1: anywhere) of node nodes[i]: nodes are numbered from 0
 * without gaps and do not fall from one thread to the next. Thread 0 is whoever calls
 * un_pool_run. A CPU that the system refuses leaves its thread unpinned: see un_pool_pinned.
 * NULL: these numbers are wrong (EINVAL), or no threads or memory are to be had. */
UN_API un_pool *un_pool_new(int threads, const int *cpus, const int *nodes);
UN_API void un_pool_free(un_pool *pool);

/* Calls work(arg, t) on `threads` threads and returns when all have returned. One run at a
 * time, from any thread; that one is pinned meanwhile. Of a pool with more threads those taking
 * part are dealt out over the nodes one each in turn, and renumbered: t is 0..threads-1,
 * contiguous per node, and the first nodes are used when there are fewer threads than nodes.
 * In a forked child the threads are made anew. 0 or -errno (nothing was run). */
UN_API int un_pool_run(un_pool *pool, int threads, void (*work)(void *arg, int thread),
                       void *arg);

/* Inside work, called by all that take part. */
UN_API void un_pool_barrier(un_pool *pool, int thread);

/* Of the run at hand. The rank counts a node's threads from 0. */
UN_API int un_pool_nodes(const un_pool *pool);
UN_API int un_pool_node(const un_pool *pool, int thread);
UN_API int un_pool_node_rank(const un_pool *pool, int thread);
UN_API int un_pool_node_size(const un_pool *pool, int node);

/* How many threads sit on the CPU that was asked for (thread 0: sat, in the last run). */
UN_API int un_pool_pinned(const un_pool *pool);

/* For `threads` threads of a run, without running: sizes[n] of the first nodes, whose number
 * is the result. */
UN_API int un_pool_shares(const un_pool *pool, int threads, int *sizes);

#endif
