/* Counts the bytes that a process has of the C library: loaded before it (LD_PRELOAD), glibc only. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

static long now, most;

static void* taken(void* block) {
    if (!block) return block;
    long bytes = __sync_add_and_fetch(&now, (long)malloc_usable_size(block));
    for (long seen = most; bytes > seen; seen = most)
        if (__sync_bool_compare_and_swap(&most, seen, bytes)) break;
    return block;
}

static void given_back(void* block) {
    if (block) __sync_sub_and_fetch(&now, (long)malloc_usable_size(block));
}

void* malloc(size_t size) { return taken(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return taken(__libc_calloc(count, size)); }
void* memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size)); }
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** block, size_t alignment, size_t size) {
    return (*block = memalign(alignment, size)) ? 0 : ENOMEM;
}

void* realloc(void* block, size_t size) {
    given_back(block);
    void* larger = __libc_realloc(block, size);
    if (!larger && size) taken(block); /* the old one is still there */
    return taken(larger);
}

void free(void* block) {
    given_back(block);
    __libc_free(block);
}

/* From here on; then how much more it was at its peak. */
void allocations_begin(long* before) { *before = most = now; }
long allocations_peak(long before) { return most - before; }
