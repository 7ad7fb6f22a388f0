// Memory beyond inputs and output.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace TF_NAMESPACE {

// Fresh memory of many pages: let the kernel hand it out in large ones, 512 times fewer faults. Not a single
// one: every thread would wait until it is cleared.
static inline void expect_writes(void* p, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 2 << 20, first = (uintptr_t(p) + page - 1) & ~(page - 1);
    const uintptr_t last = (uintptr_t(p) + bytes) & ~(page - 1);
    if (last > first + page) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

// The same for the output, and its pages now, each thread its own. Left to the first writes, threads that
// meet in a page would each clear one, and all but one be thrown away. What memory holds stays.
static inline void populate(void* p, size_t bytes, int threads) {
    expect_writes(p, bytes);
#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_WRITE)
    const uintptr_t page = 2 << 20, first = (uintptr_t(p) + page - 1) & ~(page - 1);
    const int64_t pages = (int64_t(uintptr_t(p) + bytes) - int64_t(first)) / int64_t(page);
    unsigned char resident = 1;  // memory that was used before needs nothing
    if (pages < 2 || mincore(reinterpret_cast<void*>(first), 1, &resident) || (resident & 1)) return;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < pages; i++)
        madvise(reinterpret_cast<void*>(first + i * page), page, MADV_POPULATE_WRITE);  // may be declined
#else
    (void)threads;
#endif
}

template <class T> struct Free {
    void operator()(T* p) const { std::free(p); }
};
template <class T> using Buffer = std::unique_ptr<T[], Free<T>>;
template <class T> static Buffer<T> allocate(int64_t count) {
    size_t bytes = (size_t(count) * sizeof(T) + TF_BYTES + 1023) / 1024 * 1024;
    void* p = std::aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    expect_writes(p, bytes);
    return Buffer<T>(static_cast<T*>(p));
}

}  // namespace TF_NAMESPACE
