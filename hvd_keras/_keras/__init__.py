"""The private names of Keras that hvd_keras leans on, and patches of them."""
