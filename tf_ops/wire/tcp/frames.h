// What travels between leaders: the length of a body, its kind, the body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace hvd {

enum class FrameKind : uint8_t {
  kData = 1,
  kHeartbeat = 2,
  kLeft = 3,     // why the first rank of the sender's host left
  kLost = 4,     // why a rank, of any host, is lost
  kGoodbye = 5,  // the sender ends in peace
  kAskTime = 6,  // a question of a ClockReader
  kTime = 7,     // the answer
};

inline constexpr size_t kMaxTextBytes = 4096;  // of kLeft and kLost

void AppendFrame(FrameKind kind, const void* body, size_t num_bytes,
                 std::vector<uint8_t>* bytes);

// Takes whole frames off `*bytes`, in order. False at one that makes no sense.
bool TakeFrames(std::vector<uint8_t>* bytes,
                const std::function<void(FrameKind kind, const uint8_t* body,
                                         size_t num_bytes)>& take);

}  // namespace hvd
