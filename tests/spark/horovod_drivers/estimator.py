"""`KerasEstimator` as programs for Horovod use it.

python estimator.py STORE
"""

import json
import sys

import keras
import numpy as np
import pyspark.sql.functions as F
import pyspark.sql.types as T
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import Store
from horovod.spark.keras import KerasEstimator
from pyspark import SparkConf
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import OneHotEncoder, VectorAssembler
from pyspark.sql import SparkSession

store_path = sys.argv[1]
options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}

conf = (
    SparkConf().setAppName("estimator").set("spark.sql.shuffle.partitions", "2")
)
spark = SparkSession.builder.config(conf=conf).getOrCreate()
store = Store.create(store_path, **options)

points = np.random.default_rng(1).normal(size=(512, 2))
rows = [(float(a), float(b), float(a > 0) + float(b > 0)) for a, b in points]
frame = spark.createDataFrame(rows, ["a", "b", "label"])
frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(
    frame
)
encoder = OneHotEncoder(
    inputCols=["label"], outputCols=["label_vec"], dropLast=False
)
frame = encoder.fit(frame).transform(frame)
train_df, test_df = frame.randomSplit([0.8, 0.2], seed=1)

model = keras.Sequential(
    [
        keras.Input((2,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
backend = SparkBackend(num_proc=2, stdout=sys.stdout, stderr=sys.stderr)
estimator = KerasEstimator(
    backend=backend,
    store=store,
    model=model,
    optimizer=keras.optimizers.Adam(0.02),
    loss="categorical_crossentropy",
    metrics=["accuracy"],
    feature_cols=["features"],
    label_cols=["label_vec"],
    validation=0.1,
    batch_size=16,
    epochs=10,
    shuffle_buffer_size=100,
    partitions_per_process=2,
    run_id="first",
    verbose=0,
)
keras_model = estimator.fit(train_df).setOutputCols(["label_prob"])
history = keras_model.getHistory()
assert len(history["val_accuracy"]) == 10, history
predicted = keras_model.transform(test_df)
argmax = F.udf(
    lambda v: float(np.argmax(v.toArray())), returnType=T.DoubleType()
)
predicted = predicted.withColumn("label_pred", argmax(predicted.label_prob))
evaluator = MulticlassClassificationEvaluator(
    predictionCol="label_pred", labelCol="label", metricName="accuracy"
)
accuracy = evaluator.evaluate(predicted)
assert accuracy > 0.9, accuracy
assert keras_model.getModel().count_params() == model.count_params()

checkpoint = store.get_checkpoint_path("first")
assert store.exists(checkpoint)
assert len(store.read(checkpoint)) > 1000
assert not store.exists(store.get_checkpoint_path("second"))
again = estimator.setEpochs(1).fit(train_df)  # goes on from the first
assert again.getHistory()["loss"][0] < history["loss"][0] / 2
spark.stop()
print("kept in", type(store).__name__)
