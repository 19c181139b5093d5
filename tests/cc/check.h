// What a failed check prints: values of our types, and statuses with their
// messages.
//
// CHECK goes on after a failure. REQUIRE ends the test by an exception: use it
// where what follows would make no sense. Use only CHECK in the engine's
// callbacks and on threads that no runner of test_util.h began.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"

// Fails with the status's message.
#define REQUIRE_OK(expression) REQUIRE((expression) == ::hvd::Status::Ok())
#define CHECK_OK(expression) CHECK((expression) == ::hvd::Status::Ok())

namespace hvd {

inline doctest::String toString(StatusCode code) {
  return StatusCodeName(code);
}
inline doctest::String toString(CollectiveKind kind) {
  return CollectiveKindName(kind);
}
inline doctest::String toString(const Status& status) {
  const std::string text = status.ok()
                               ? "ok"
                               : std::string(StatusCodeName(status.code())) +
                                     ": " + status.message();
  return text.c_str();
}

// Whether `text` has `part`; prints both.
class Contains {
 public:
  Contains(std::string text, std::string part)
      : text_(std::move(text)), part_(std::move(part)) {}
  explicit operator bool() const {
    return text_.find(part_) != std::string::npos;
  }
  friend doctest::String toString(const Contains& c) {
    const std::string text = "\"" + c.text_ + "\"" +
                             (c ? " contains \"" : " does not contain \"") +
                             c.part_ + "\"";
    return text.c_str();
  }

 private:
  const std::string text_;
  const std::string part_;
};

// Compares `list[i]` with `expected(i)` for each i: "" if all are equal, else
// the first that differs and how many do. One check for a million elements.
template <typename List, typename Expected>
std::string Differences(const List& list, const Expected& expected) {
  const size_t size = list.size();
  size_t first = size;
  size_t num_different = 0;
  for (size_t i = 0; i < size; ++i) {
    if (list[i] == expected(i)) continue;  // NaN differs
    if (++num_different == 1) first = i;
  }
  if (num_different == 0) return "";
  std::ostringstream text;
  text << num_different << " of " << size << " differ: [" << first << "] is "
       << +list[first] << ", not " << +expected(first);
  return text.str();
}

}  // namespace hvd

namespace doctest {

// Prints only the beginning of long ones.
template <typename T>
struct StringMaker<std::vector<T>> {
  static String convert(const std::vector<T>& values) {
    constexpr size_t kMost = 20;
    String text = "[";
    for (size_t i = 0; i < values.size() && i < kMost; ++i) {
      text += (i == 0 ? "" : ", ") + toString(values[i]);
    }
    if (values.size() > kMost) {
      text += (", ... (" + std::to_string(values.size()) + ")").c_str();
    }
    return text + "]";
  }
};

}  // namespace doctest
