// Failures as codes: 0, or 1 with a message for the thread that made the call.
#pragma once
#include <exception>
#include <new>
#include <string>

int transfuse_failed(const std::string& reason);

template <class F> static int guarded(F f) {
    try {
        f();
        return 0;
    } catch (const std::bad_alloc&) {
        return transfuse_failed("out of memory");
    } catch (const std::exception& error) {
        return transfuse_failed(error.what());
    }
}
