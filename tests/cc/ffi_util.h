// XLA's side of its FFI: calls of handlers, as XLA:GPU would make them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/common/types.h"
#include "xla/ffi/api/c_api.h"

// What XLA knows and handlers do not.
struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};

struct XLA_FFI_ExecutionContext {
  void* stream;
};

namespace hvd {

inline XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->message, args->errc};
}

inline void GetErrorMessage(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = args->error->message.c_str();
}

inline void DestroyError(XLA_FFI_Error_Destroy_Args* args) {
  delete args->error;
}

inline XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->stream;
  return nullptr;
}

inline const XLA_FFI_Api* FfiApi() {
  static const XLA_FFI_Api* const api = [] {
    auto* const made = new XLA_FFI_Api();
    made->struct_size = XLA_FFI_Api_STRUCT_SIZE;
    made->api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
    made->api_version.major_version = XLA_FFI_API_MAJOR;
    made->api_version.minor_version = XLA_FFI_API_MINOR;
    made->XLA_FFI_Error_Create = CreateError;
    made->XLA_FFI_Error_GetMessage = GetErrorMessage;
    made->XLA_FFI_Error_Destroy = DestroyError;
    made->XLA_FFI_Stream_Get = GetStream;
    return made;
  }();
  return api;
}

// Memory and shape of an operand or result.
struct FfiBuffer {
  void* data;
  Shape shape;
  XLA_FFI_DataType dtype = XLA_FFI_DataType_F32;
};

// What a handler has answered.
struct FfiOutcome {
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_OK;
  std::string message;
  bool ok() const { return code == XLA_FFI_Error_Code_OK; }
};

// One custom call. For one thread, one call of Run.
class FfiCall {
 public:
  FfiCall& Operand(FfiBuffer buffer) { return Add(&operands_, buffer); }
  FfiCall& Result(FfiBuffer buffer) { return Add(&results_, buffer); }
  // An operand, and a result in its place.
  FfiCall& InPlace(const FfiBuffer& buffer) {
    return Operand(buffer).Result(buffer);
  }
  FfiCall& Set(const std::string& name, int32_t value) {
    return Add(name, XLA_FFI_DataType_S32, &integers_, value);
  }
  FfiCall& Set(const std::string& name, double value) {
    return Add(name, XLA_FFI_DataType_F64, &numbers_, value);
  }
  FfiCall& Set(const std::string& name, const std::string& value) {
    spans_.push_back(Span(value));
    attributes_.push_back(
        {Span(name), XLA_FFI_AttrType_STRING, &spans_.back()});
    return *this;
  }

  FfiOutcome Run(XLA_FFI_Handler* handler, void* stream) {
    std::vector<XLA_FFI_ArgType> arg_types(operands_.size(),
                                           XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> ret_types(results_.size(),
                                           XLA_FFI_RetType_BUFFER);
    std::vector<void*> args = Addresses(&operands_);
    std::vector<void*> rets = Addresses(&results_);
    const auto less = [](const Attribute& a, const Attribute& b) {
      return std::string(a.name.ptr, a.name.len) <
             std::string(b.name.ptr, b.name.len);
    };
    std::sort(attributes_.begin(), attributes_.end(), less);
    std::vector<XLA_FFI_AttrType> attr_types;
    std::vector<XLA_FFI_ByteSpan*> names;
    std::vector<void*> attrs;
    for (Attribute& attribute : attributes_) {
      attr_types.push_back(attribute.type);
      names.push_back(&attribute.name);
      attrs.push_back(attribute.value);
    }
    XLA_FFI_ExecutionContext context{stream};
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = FfiApi();
    frame.ctx = &context;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, Count(args),
                  arg_types.data(), args.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, Count(rets),
                  ret_types.data(), rets.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,      Count(attrs),
                   attr_types.data(),         names.data(), attrs.data()};
    const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
    CHECK(frame.future == nullptr);  // XLA:GPU would wait for it
    return error == nullptr ? FfiOutcome()
                            : FfiOutcome{error->code, error->message};
  }

 private:
  struct Attribute {
    XLA_FFI_ByteSpan name;
    XLA_FFI_AttrType type;
    void* value;
  };
  struct Buffer {
    Shape shape;
    XLA_FFI_Buffer buffer;
  };

  FfiCall& Add(std::deque<Buffer>* to, const FfiBuffer& from) {
    to->push_back({from.shape, {}});
    Buffer& added = to->back();
    added.buffer = {
        XLA_FFI_Buffer_STRUCT_SIZE, nullptr,           from.dtype, from.data,
        Count(added.shape),         added.shape.data()};
    return *this;
  }
  template <typename T>
  FfiCall& Add(const std::string& name, XLA_FFI_DataType dtype,
               std::deque<T>* values, T value) {
    values->push_back(value);
    scalars_.push_back({dtype, &values->back()});
    attributes_.push_back(
        {Span(name), XLA_FFI_AttrType_SCALAR, &scalars_.back()});
    return *this;
  }
  XLA_FFI_ByteSpan Span(const std::string& text) {
    texts_.push_back(text);
    return {texts_.back().data(), texts_.back().size()};
  }
  template <typename T>
  static int64_t Count(const std::vector<T>& list) {
    return static_cast<int64_t>(list.size());
  }
  static std::vector<void*> Addresses(std::deque<Buffer>* buffers) {
    std::vector<void*> addresses;
    for (Buffer& one : *buffers) addresses.push_back(&one.buffer);
    return addresses;
  }

  // Deques: what is in them stays where it is.
  std::deque<Buffer> operands_, results_;
  std::deque<std::string> texts_;
  std::deque<XLA_FFI_ByteSpan> spans_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<int32_t> integers_;
  std::deque<double> numbers_;
  std::vector<Attribute> attributes_;
};

}  // namespace hvd
