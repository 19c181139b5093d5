// A list of tensors seen as one long run of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace hvd {

// One member: `num_bytes` at `input` become `num_bytes` at `output`. Both are
// borrowed and may be the same memory. One that the collective does not need
// may be null: then nothing is copied.
struct ListTensor {
  const void* input = nullptr;
  void* output = nullptr;
  size_t num_bytes = 0;
  // What a wire format keeps residuals by, from call to call; 0: none. And
  // the rows of the matrix that it is for low ranks; 0: it is none.
  uint64_t key = 0;
  size_t rows = 0;
};

// Not thread-safe. Copies the descriptions, borrows the memory.
class TensorList {
 public:
  explicit TensorList(std::vector<ListTensor> tensors);

  size_t num_bytes() const { return offsets_.back(); }

  // Calls f(input, output, count) for each piece of the bytes [begin, end),
  // in order. Pointers are null where the tensor's are.
  template <typename F>
  void ForEach(size_t begin, size_t end, F f) const {
    if (begin >= end) return;
    for (size_t i = IndexOf(begin); begin < end; ++i) {
      const size_t stop = offsets_[i + 1] < end ? offsets_[i + 1] : end;
      if (stop == begin) continue;  // an empty tensor
      const size_t skip = begin - offsets_[i];
      const ListTensor& t = tensors_[i];
      f(t.input == nullptr ? nullptr
                           : static_cast<const std::byte*>(t.input) + skip,
        t.output == nullptr ? nullptr
                            : static_cast<std::byte*>(t.output) + skip,
        stop - begin);
      begin = stop;
    }
  }

  const std::vector<ListTensor>& tensors() const { return tensors_; }
  // The bytes [begin, end) as a list of their own.
  TensorList Slice(size_t begin, size_t end) const;

  // Copies the input bytes [begin, end) to `to`, which others will read.
  void CopyIn(size_t begin, size_t end, std::byte* to) const;
  // Copies `from`, which others have written, to the output bytes [begin, end);
  // what has no output is dropped.
  void CopyOut(size_t begin, size_t end, const std::byte* from) const;

 private:
  size_t IndexOf(size_t begin) const;  // the tensor that holds byte `begin`

  const std::vector<ListTensor> tensors_;
  std::vector<size_t> offsets_;  // one more than tensors
};

// Copies into memory that another core has read last. On x86 `rep movsb` writes
// whole cache lines without reading them first, which is several times faster.
void CopyToShared(void* to, const void* from, size_t count);

}  // namespace hvd
