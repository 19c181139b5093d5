// Reads the attributes of a node, once, while its kernel is made.
#pragma once

#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/common/types.h"
#include "tf_ops/kernels/tf_c_api.h"

namespace hvd {

// The attributes of every op of ours.
struct CommonAttributes {
  int32_t process_set_id = 0;
  // Whether iterations of a loop around the node may run at once, in any order:
  // the name then includes the iteration. True in TF1-style graphs; in a
  // tf.function the side effects of one iteration end before the next begins.
  bool iterations_may_overlap = false;
};

class OpAttributes {
 public:
  explicit OpAttributes(TF_OpKernelConstruction* construction)
      : construction_(construction) {}

  Status Int(const char* name, int32_t* value) const;
  Status Bool(const char* name, bool* value) const;
  Status String(const char* name, std::string* value) const;

  // A decimal number in a string: TensorFlow's own `float` attributes keep 24
  // bits, too few for the scale factor of a float64 tensor.
  Status Double(const char* name, double* value) const;

  Status Common(CommonAttributes* common) const;

  // A ReduceOp, given by its number.
  Status Reduction(const char* name, ReduceOp* op) const;
  // A WireFormat, given by its number.
  Status Format(const char* name, WireFormat* format) const;

 private:
  TF_OpKernelConstruction* const construction_;
};

}  // namespace hvd
