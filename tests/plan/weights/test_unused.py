"""Parts of a checkpoint that are not read are named with their sizes."""

from wisp_plan.checkpoint.header import TensorInfo
from wisp_plan.weights.unused import describe_unused


def tensors_of(*names):
    return {name: TensorInfo(name, "BF16", (512, 1024), 0, 1 << 20, "f") for name in names}


def test_modules_without_a_used_tensor_are_named():
    tensors = tensors_of(
        "model.language_model.norm.weight", "model.visual.a", "model.visual.b", "mtp.fc.weight"
    )
    extra = [name for name in tensors if "language" not in name]
    expected = "model.visual.* (2 tensors, 2.0 MiB), mtp.* (1 tensor, 1.0 MiB)"
    assert sorted(describe_unused(tensors, extra).split("), ")) == sorted(expected.split("), "))


def test_stray_tensors_of_modules_that_are_used_are_not():
    tensors = tensors_of("model.layers.0.q.weight", "model.layers.0.q.input_scale")
    assert describe_unused(tensors, ["model.layers.0.q.input_scale"]) == ""
    assert describe_unused(tensors, []) == ""


def test_a_layer_behind_the_last_is_named():
    tensors = tensors_of("model.layers.0.mlp.w", "model.layers.1.mlp.w", "model.layers.1.eh_proj.weight")
    extra = [name for name in tensors if ".1." in name]
    assert describe_unused(tensors, extra) == "model.layers.1.* (2 tensors, 2.0 MiB)"
