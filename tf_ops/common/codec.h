// Flat binary encoding of control messages, in host byte order (all hosts of a
// job have the same). The reader checks every length before it uses it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace hvd {

// Appends to borrowed bytes.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<uint8_t>* bytes) : bytes_(*bytes) {}

  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const size_t end = bytes_.size();
    bytes_.resize(end + sizeof(T));
    std::memcpy(bytes_.data() + end, &value, sizeof(T));
  }
  void PutString(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }

 private:
  std::vector<uint8_t>& bytes_;
};

// Borrows the bytes. After a read beyond the end ok() is false, and reads
// give zeros and empty strings.
class ByteReader {
 public:
  ByteReader(const uint8_t* bytes, size_t num_bytes)
      : next_(bytes), end_(bytes + num_bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value{};
    if (Has(sizeof(T))) {
      std::memcpy(&value, next_, sizeof(T));
      next_ += sizeof(T);
    }
    return value;
  }
  std::string GetString() {
    const uint32_t count = Get<uint32_t>();
    if (!Has(count)) return std::string();
    std::string text(reinterpret_cast<const char*>(next_), count);
    next_ += count;
    return text;
  }
  // One of the values from 0 to `last`.
  template <typename T>
  T GetUpTo(T last) {
    const T value = Get<T>();
    const auto number = static_cast<int64_t>(value);
    Expect(number >= 0 && number <= static_cast<int64_t>(last));
    return value;
  }
  // A count of things that take at least `least_bytes` each.
  uint32_t GetCount(size_t least_bytes) {
    const uint32_t count = Get<uint32_t>();
    return Has(count * least_bytes) ? count : 0;
  }

  // What was read makes sense only if `condition` holds.
  void Expect(bool condition) { ok_ = ok_ && condition; }

  bool ok() const { return ok_; }
  bool at_end() const { return next_ == end_; }

 private:
  bool Has(size_t count) {
    ok_ = ok_ && count <= static_cast<size_t>(end_ - next_);
    return ok_;
  }

  const uint8_t* next_;
  const uint8_t* const end_;
  bool ok_ = true;
};

}  // namespace hvd
