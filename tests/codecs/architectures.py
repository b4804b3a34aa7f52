"""Shapes of the tensors of well-known models, in the order of their modules. Parameters, then buffers of floats."""

from __future__ import annotations

Shapes = list[tuple[int, ...]]


def resnet50() -> tuple[Shapes, Shapes]:
    """25,557,032 parameters (He et al. 2015, table 1, in torchvision's form)."""
    parameters: Shapes = []
    widths: list[int] = []

    def convolution(inputs: int, outputs: int, kernel: int) -> None:
        parameters.extend([(outputs, inputs, kernel, kernel), (outputs,), (outputs,)])
        widths.append(outputs)

    convolution(3, 64, 7)
    inputs = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(count):
            convolution(inputs, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if place == 0:
                convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    parameters.extend([(1000, 2048), (1000,)])
    return parameters, [(width,) for width in widths for _ in range(2)]


def mobilenet_v2() -> tuple[Shapes, Shapes]:
    """3,504,872 parameters (Sandler et al. 2018, table 2)."""
    parameters: Shapes = []
    widths: list[int] = []

    def convolution(inputs: int, outputs: int, kernel: int, groups: int = 1) -> None:
        parameters.extend([(outputs, inputs // groups, kernel, kernel), (outputs,), (outputs,)])
        widths.append(outputs)

    convolution(3, 32, 3)
    inputs = 32
    for factor, outputs, count in (
        (1, 16, 1),
        (6, 24, 2),
        (6, 32, 3),
        (6, 64, 4),
        (6, 96, 3),
        (6, 160, 3),
        (6, 320, 1),
    ):
        for _ in range(count):
            hidden = factor * inputs
            if factor > 1:
                convolution(inputs, hidden, 1)
            convolution(hidden, hidden, 3, groups=hidden)
            convolution(hidden, outputs, 1)
            inputs = outputs
    convolution(inputs, 1280, 1)
    parameters.extend([(1000, 1280), (1000,)])
    return parameters, [(width,) for width in widths for _ in range(2)]


def gpt2() -> tuple[Shapes, Shapes]:
    """124,439,808 parameters (Radford et al. 2019, the smallest size; the head is the embedding)."""
    width = 768
    block: Shapes = [
        (width,),
        (width,),
        (width, 3 * width),
        (3 * width,),
        (width, width),
        (width,),
        (width,),
        (width,),
        (width, 4 * width),
        (4 * width,),
        (4 * width, width),
        (width,),
    ]
    return [(50_257, width), (1_024, width), *block * 12, (width,), (width,)], []


MODELS = {"ResNet-50": resnet50(), "MobileNetV2": mobilenet_v2(), "GPT-2": gpt2()}
