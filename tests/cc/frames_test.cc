// Frames of the links between leaders.
#include "tf_ops/wire/tcp/frames.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cc/test_util.h"

namespace hvd {
namespace {

struct Taken {
  std::vector<std::string> bodies;
  bool makes_sense = true;
};

Taken TakeBy(size_t step, const std::vector<uint8_t>& bytes) {
  Taken taken;
  std::vector<uint8_t> received;
  for (size_t i = 0; i < bytes.size() && taken.makes_sense; i += step) {
    const size_t end = std::min(i + step, bytes.size());
    received.insert(received.end(), bytes.begin() + static_cast<ptrdiff_t>(i),
                    bytes.begin() + static_cast<ptrdiff_t>(end));
    taken.makes_sense = TakeFrames(
        &received, [&](FrameKind kind, const uint8_t* body, size_t num_bytes) {
          taken.bodies.push_back(std::to_string(static_cast<int>(kind)) +
                                 std::string(body, body + num_bytes));
        });
  }
  return taken;
}

TEST_CASE("frames come whole and in order, in whatever pieces they travel") {
  std::vector<uint8_t> bytes;
  AppendFrame(FrameKind::kData, "abc", 3, &bytes);
  AppendFrame(FrameKind::kHeartbeat, nullptr, 0, &bytes);
  AppendFrame(FrameKind::kLost, "why", 3, &bytes);
  AppendFrame(FrameKind::kData, "", 0, &bytes);
  const std::vector<std::string> all = {"1abc", "2", "4why", "1"};
  for (size_t step = 1; step <= bytes.size(); ++step) {
    const Taken taken = TakeBy(step, bytes);
    CHECK(taken.makes_sense);
    CHECK(taken.bodies == all);
  }
  bytes.pop_back();
  CHECK(TakeBy(bytes.size(), bytes).bodies.size() == 3);
}

TEST_CASE("a frame of no kind, or of a length that its kind has not, is none") {
  const std::vector<std::vector<uint8_t>> wrong = {
      {0, 0, 0, 0, 0},  // no kind
      {0, 0, 0, 0, 8},  // no kind
      {1, 0, 0, 0, static_cast<uint8_t>(FrameKind::kHeartbeat), 0},
      {1, 0, 0, 0, static_cast<uint8_t>(FrameKind::kGoodbye), 0},
      {7, 0, 0, 0, static_cast<uint8_t>(FrameKind::kAskTime)},
      {17, 0, 0, 0, static_cast<uint8_t>(FrameKind::kTime)},
      {1, 16, 0, 0, static_cast<uint8_t>(FrameKind::kLeft)},  // 4097
  };
  for (const std::vector<uint8_t>& bytes : wrong) {
    const Taken taken = TakeBy(bytes.size(), bytes);
    CHECK(!taken.makes_sense);
    CHECK(taken.bodies.empty());
  }
}

}  // namespace
}  // namespace hvd
