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

template <class T> struct Free {
    void operator()(T* p) const { std::free(p); }
};
template <class T> using Buffer = std::unique_ptr<T[], Free<T>>;
template <class T> static Buffer<T> allocate(int64_t count) {
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow(size_t(count), sizeof(T), &bytes) || bytes > PTRDIFF_MAX - 2048)
        throw std::bad_alloc();
    bytes = (bytes + TF_BYTES + 1023) / 1024 * 1024;
    void* p = std::aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    expect_writes(p, bytes);
    return Buffer<T>(static_cast<T*>(p));
}

}  // namespace TF_NAMESPACE
