#include "tf_ops/collectives/tensor_list.h"

#include <algorithm>
#include <utility>

#include "tf_ops/collectives/phases.h"

namespace hvd {

TensorList::TensorList(std::vector<ListTensor> tensors)
    : tensors_(std::move(tensors)) {
  offsets_.reserve(tensors_.size() + 1);
  offsets_.push_back(0);
  for (const ListTensor& t : tensors_) {
    offsets_.push_back(offsets_.back() + t.num_bytes);
  }
}

size_t TensorList::IndexOf(size_t begin) const {
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), begin);
  return static_cast<size_t>(after - offsets_.begin()) - 1;
}

TensorList TensorList::Slice(size_t begin, size_t end) const {
  std::vector<ListTensor> list;
  ForEach(begin, end, [&list](const std::byte* in, std::byte* out, size_t n) {
    list.push_back(ListTensor{in, out, n});
  });
  return TensorList(std::move(list));
}

void TensorList::CopyIn(size_t begin, size_t end, std::byte* to) const {
  if (begin >= end) return;
  ScopedPhase phase(Phase::kPack, end - begin);
  size_t num_copied = 0;
  ForEach(begin, end, [&](const std::byte* in, std::byte*, size_t count) {
    if (in != nullptr) {
      CopyToShared(to, in, count);
      num_copied += count;
    }
    to += count;
  });
  phase.set_num_bytes(num_copied);
}

void TensorList::CopyOut(size_t begin, size_t end,
                         const std::byte* from) const {
  if (begin >= end) return;
  ScopedPhase phase(Phase::kCopy, end - begin);
  size_t num_copied = 0;
  ForEach(begin, end, [&](const std::byte*, std::byte* out, size_t count) {
    if (out != nullptr) {
      std::memcpy(out, from, count);
      num_copied += count;
    }
    from += count;
  });
  phase.set_num_bytes(num_copied);
}

void CopyToShared(void* to, const void* from, size_t count) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
  if (count >= 512) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
    return;
  }
#endif
  std::memcpy(to, from, count);
}

}  // namespace hvd
