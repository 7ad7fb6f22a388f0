// Work shared between threads.
#pragma once
#include <omp.h>

#include <cstdint>
#include <exception>
#include <memory>

namespace TF_NAMESPACE {

// f(own, i) for every i < count, each thread with an `own` that prepare() made. A thread that fails
// leaves its share to the others, and the failure is thrown when all are done. What one thread does, the
// caller does itself: to begin and end a parallel region takes longer than a small problem.
template <class Prepare, class F> static void in_parallel(int threads, int64_t count, Prepare prepare, F f) {
    if (threads == 1 || count <= 1) {
        if (count <= 0) return;
        auto own = prepare();
        for (int64_t i = 0; i < count; i++) f(own, i);
        return;
    }
    std::exception_ptr failure;
    const auto done = [&](auto work) {
        try {
            work();
            return true;
        } catch (...) {
#pragma omp critical
            failure = std::current_exception();
            return false;
        }
    };
#pragma omp parallel num_threads(threads)
    {
        std::unique_ptr<decltype(prepare())> own;
        done([&] { own.reset(new decltype(prepare())(prepare())); });
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++)
            if (own && !done([&] { f(*own, i); })) own.reset();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace TF_NAMESPACE
