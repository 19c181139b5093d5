#!/bin/sh
# Prints C source with an empty function for every function of TensorFlow's C
# API that HEADER declares. Our library links it as
# libtensorflow_framework.so.2, in place of TensorFlow. It is never shipped.
#
# Usage: make_tf_stub.sh HEADER > stub.c
set -eu

header=${1:?usage: make_tf_stub.sh HEADER}
echo "/* Generated from $(basename "$header") by make_tf_stub.sh. */"
sed 's://.*$::' "$header" |
  grep -oE '\bTF_[A-Za-z0-9_]+ *\(' |
  tr -d ' (' | LC_ALL=C sort -u |
  sed 's/.*/void &(void);\nvoid &(void) {}/'
