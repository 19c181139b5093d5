#include "tf_ops/wire/control_links.h"

namespace hvd {

ControlLinks::~ControlLinks() = default;

}  // namespace hvd
