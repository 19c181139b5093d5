#include "tf_ops/wire/tcp/frames.h"

#include <cstring>

#include "tf_ops/wire/tcp/clock_reader.h"

namespace hvd {
namespace {

constexpr size_t kHeaderBytes = 5;

bool IsLengthOf(FrameKind kind, uint32_t length) {
  switch (kind) {
    case FrameKind::kData:
      return true;
    case FrameKind::kLeft:
    case FrameKind::kLost:
      return length <= kMaxTextBytes;
    case FrameKind::kHeartbeat:
    case FrameKind::kGoodbye:
      return length == 0;
    case FrameKind::kAskTime:
      return length == sizeof(ClockReader::Question);
    case FrameKind::kTime:
      return length == sizeof(ClockReader::Answer);
  }
  return false;  // unknown
}

}  // namespace

void AppendFrame(FrameKind kind, const void* body, size_t num_bytes,
                 std::vector<uint8_t>* bytes) {
  const auto length = static_cast<uint32_t>(num_bytes);
  const size_t begin = bytes->size();
  bytes->resize(begin + kHeaderBytes + num_bytes);
  std::memcpy(bytes->data() + begin, &length, sizeof(length));
  (*bytes)[begin + sizeof(length)] = static_cast<uint8_t>(kind);
  if (num_bytes > 0) {
    std::memcpy(bytes->data() + begin + kHeaderBytes, body, num_bytes);
  }
}

bool TakeFrames(std::vector<uint8_t>* bytes,
                const std::function<void(FrameKind kind, const uint8_t* body,
                                         size_t num_bytes)>& take) {
  size_t offset = 0;
  while (bytes->size() - offset >= kHeaderBytes) {
    const uint8_t* const header = bytes->data() + offset;
    uint32_t length = 0;
    std::memcpy(&length, header, sizeof(length));
    const auto kind = static_cast<FrameKind>(header[sizeof(length)]);
    if (!IsLengthOf(kind, length)) return false;
    if (bytes->size() - offset - kHeaderBytes < length) break;
    take(kind, header + kHeaderBytes, length);
    offset += kHeaderBytes + length;
  }
  bytes->erase(bytes->begin(), bytes->begin() + static_cast<ptrdiff_t>(offset));
  return true;
}

}  // namespace hvd
