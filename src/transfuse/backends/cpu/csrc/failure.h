// Failures as codes: 0, or 1 with a message for the thread that made the call. Nothing is thrown across the
// boundary to C, and nothing is allocated to tell of a failure: memory may be what ran out.
#pragma once
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

int transfuse_failed(const char* reason) noexcept;

template <class F> static int guarded(F f) noexcept {
    try {
        f();
        return 0;
    } catch (const std::bad_alloc&) {
        return transfuse_failed("out of memory");
    } catch (const std::exception& error) {
        return transfuse_failed(error.what());
    } catch (...) {
        return transfuse_failed("an unknown failure of the core");
    }
}

// Messages without streams: a stream looks into the process's locale, which other libraries that
// bring a C++ runtime of their own may have made unsafe to share.
static inline std::string text(const std::string& words) { return words; }
template <class T> std::enable_if_t<std::is_integral<T>::value, std::string> text(T number) {
    return std::to_string(number);
}
template <class T> std::string text(const std::vector<T>& values) {
    if (values.size() == 1) return text(values[0]);
    std::string all = "[";
    for (size_t i = 0; i < values.size(); i++) all += (i ? ", " : "") + text(values[i]);
    return all + "]";
}

template <class... P> [[noreturn]] void refuse(const P&... parts) {
    throw std::invalid_argument((std::string() + ... + text(parts)));
}
