// TensorFlow 2.19 includes this header of LLVM, and does not ship it. Of it, the
// headers need what is below; the shim calls none of it.
#pragma once

namespace llvm {

template <typename T>
class ArrayRef {
 public:
  template <typename Container>
  ArrayRef(const Container& container);
};

}  // namespace llvm
