// What the tests' process and the emulated one say to each other: frames of values, one after another.
//
// Both lay values out alike, so they travel as they lie in memory. What
// a pointer leads to travels with its alignment: some loops take another path by it.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// TEXT: any function that gives a text and takes nothing, by its name.
enum class Function : int32_t { TEXT, USE_ISA, PACKED_BYTES, COPIES, PACK, DIGEST, FINITE, DECIDE, RUN, SWEEP, WINNERS };

constexpr size_t LINE = 64;  // bytes: no loop looks at more of an address

class Frame {
  public:
    template <class T> void put(const T& value) { put(&value, sizeof value); }
    void put(const void* from, size_t size) {
        const char* first = static_cast<const char*>(from);
        bytes.insert(bytes.end(), first, first + size);
    }
    void put_memory(const void* from, size_t size) {
        put(from ? size : size_t(0));
        put(reinterpret_cast<uintptr_t>(from) % LINE);
        put(from != nullptr);
        if (from) put(from, size);
    }
    void put_text(const std::string& text) { put_memory(text.data(), text.size()); }

    template <class T> T get() {
        T value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    const char* take(size_t size) {
        if (size > bytes.size() - at) throw std::runtime_error("a frame ends too early");
        at += size;
        return bytes.data() + at - size;
    }
    std::string get_text() {
        const size_t size = get<size_t>();
        get<size_t>(), get<bool>();
        return std::string(take(size), size);
    }

    // Both are false where the other end is gone.
    bool send(int to) const {
        const size_t size = bytes.size();
        return whole(write, to, reinterpret_cast<const char*>(&size), sizeof size) &&
               whole(write, to, bytes.data(), size);
    }
    bool receive(int from) {
        size_t size;
        if (!whole(read, from, reinterpret_cast<char*>(&size), sizeof size)) return false;
        bytes.resize(size);
        at = 0;
        return whole(read, from, bytes.data(), size);
    }

  private:
    std::vector<char> bytes;
    size_t at = 0;

    template <class F, class P> static bool whole(F move, int file, P* at, size_t size) {
        while (size) {
            const ssize_t n = move(file, at, size);
            if (n <= 0) return false;
            at += n;
            size -= size_t(n);
        }
        return true;
    }
};
