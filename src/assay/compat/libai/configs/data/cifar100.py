"""Pictures of CIFAR-100 from the files of its binary version in `root`."""

from assay.config import LazyCall

_MEAN = (0.5071, 0.4865, 0.4409)
_STD = (0.2673, 0.2564, 0.2762)

train_aug = LazyCall("flowvision.transforms.Compose")(
    transforms=[
        LazyCall("flowvision.transforms.RandomHorizontalFlip")(),
        LazyCall("flowvision.transforms.ToTensor")(),
        LazyCall("flowvision.transforms.Normalize")(mean=_MEAN, std=_STD),
    ]
)

test_aug = LazyCall("flowvision.transforms.Compose")(
    transforms=[
        LazyCall("flowvision.transforms.ToTensor")(),
        LazyCall("flowvision.transforms.Normalize")(mean=_MEAN, std=_STD),
    ]
)

dataloader = dict(
    train=LazyCall("libai.data.build.build_image_train_loader")(
        dataset=[
            LazyCall("libai.data.datasets.CIFAR100Dataset")(
                root="./", train=True, download=True, transform=train_aug
            )
        ],
        num_workers=4,
    ),
    test=[
        LazyCall("libai.data.build.build_image_test_loader")(
            dataset=LazyCall("libai.data.datasets.CIFAR100Dataset")(
                root="./", train=False, download=True, transform=test_aug
            ),
            num_workers=4,
        )
    ],
)
