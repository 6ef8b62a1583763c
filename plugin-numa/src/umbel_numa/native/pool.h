#ifndef UN_POOL_H
#define UN_POOL_H
typedef struct un_pool un_pool;
un_pool *un_pool_new(int threads, const int *cpus, const int *nodes);
void un_pool_run(un_pool *, int threads, void (*work)(void *arg, int thread), void *arg);
void un_pool_barrier(un_pool *, int thread);
void un_pool_free(un_pool *);
int un_pool_node(const un_pool *, int thread);
int un_pool_node_rank(const un_pool *, int thread);
int un_pool_node_size(const un_pool *, int node);
int un_pool_nodes(const un_pool *);
#endif
