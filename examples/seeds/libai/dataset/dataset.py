import oneflow as flow
from flowvision import datasets, transforms
from libai.data.structures import DistTensorData, Instance
from oneflow.utils.data import Dataset


class MnistDataSet(Dataset):
    def __init__(self, path, is_train, size=600):
        self.data = datasets.MNIST(root=path, train=is_train, transform=transforms.ToTensor())
        self.size = size

    def __getitem__(self, idx):
        image, label = self.data[idx]
        return Instance(
            inputs=DistTensorData(image.clone().detach()),
            labels=DistTensorData(flow.tensor(label, dtype=flow.int), placement_idx=-1),
        )

    def __len__(self):
        return min(self.size, len(self.data))
