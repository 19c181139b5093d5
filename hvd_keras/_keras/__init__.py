"""The private names of Keras that hvd_keras uses, and patches of them."""
