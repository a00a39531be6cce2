"""What pyproject.toml has no words for: two folders of the repository become folders of the package."""

from setuptools import find_namespace_packages, setup

SHIPPED = {"trl_dbbench.recipes": "recipes", "trl_dbbench.accelerate_configs": "accelerate_configs"}
CACHES = ["*__pycache__*"]

setup(
    packages=[
        *find_namespace_packages(include=["trl_dbbench*"], exclude=CACHES),
        *SHIPPED,
        *(
            f"{package}.{inner}"
            for package, folder in SHIPPED.items()
            for inner in find_namespace_packages(folder, exclude=CACHES)
        ),
    ],
    package_dir=SHIPPED,
    package_data={"": ["*.j2", "*.jinja", "*.json", "*.jsonl", "*.safetensors", "*.txt", "*.yaml"]},
)
