/* Memory by the page: where it lies, and where it shall lie.
 *
 * Functions that return int give 0 or -errno and change nothing else: a system that refuses
 * (a container without the permission, a kernel without NUMA, macOS: -ENOSYS) leaves memory as
 * usable as it was. `node` is the kernel's number. Ranges need not begin or end on a page: a
 * page belongs to the range in which it begins, so that neighbours share none.
 */
#ifndef UN_PAGES_H
#define UN_PAGES_H

#include <stdint.h>

#ifndef UN_API
#define UN_API __attribute__((visibility("default")))
#endif

UN_API int64_t un_pages_size(void);

/* Fresh zeroes, on no node until they are touched. `huge`: in huge pages where the system
 * offers them, from 2 MiB on beginning at a multiple of them. NULL, with errno, on failure. */
UN_API void *un_pages_alloc(int64_t bytes, int huge);
UN_API int un_pages_free(void *addr, int64_t bytes);

/* Binds the range to a node: what is not touched yet will lie there, the rest is moved. */
UN_API int un_pages_bind(void *addr, int64_t bytes, int node);

/* Moves pages that are there, of a mapped file too, without a policy for those to come. Goes
 * on past a page that cannot move; the first such reason is the result (-ENOENT: not in memory,
 * -EACCES: another process has it mapped too). */
UN_API int un_pages_move(void *addr, int64_t bytes, int node);

/* counts[n] becomes the number of pages on node n < nodes; counts[nodes], that of all others
 * and of those not in memory. */
UN_API int un_pages_where(void *addr, int64_t bytes, int64_t *counts, int nodes);

/* How many bytes of the range are not in memory: never touched, given back, or swapped out.
 * No system refuses to tell; -errno where nothing is mapped. */
UN_API int64_t un_pages_absent(void *addr, int64_t bytes);

/* Gives whole pages inside a mapping of a file back: they are read again when used. Of
 * anonymous memory the content would be lost. */
UN_API int un_pages_drop(void *addr, int64_t bytes);

#endif
