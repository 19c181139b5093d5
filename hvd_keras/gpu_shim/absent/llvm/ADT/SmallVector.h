// As ArrayRef.h beside it.
#pragma once

namespace llvm {

template <typename T, unsigned kNumInline = 0>
class SmallVector {};

}  // namespace llvm
